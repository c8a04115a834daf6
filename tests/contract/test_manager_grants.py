"""A signed grant holds a manager to it, wherever its pipeline runs."""

from __future__ import annotations

import pytest
from tests.command_line import said
from tests.manager_doors import Door

from ringfence import Denied, InvalidRequest, RingfenceError
from ringfence.operation.brokered import FsRead, FsWrite, TmpAlloc
from ringfence.service.callers import OWNER

SUBJECTS = {"embedded": "local", "tcp": "first", "unix": OWNER.caller.subject_id}
"""Whom each door knows its caller as; the key that a new service makes is called `first`."""
pytestmark = [pytest.mark.needs("native", "biscuit"), pytest.mark.timeout(120), pytest.mark.once]


def issued(door: Door, call_id: str, tool: str = "code_run") -> str:
    """Return a token of whoever signs for the pipeline, for one tool in one call."""
    if not any((door.state / "keys").glob("*")):
        said(door.state, "key", "create")
    words = ("grant", "issue", "--subject", SUBJECTS[door.name], "--tool", tool, "--call", call_id)
    return said(door.state, *words).strip()


async def test_a_grant_governs_one_call_and_is_used_up_with_it(door: Door) -> None:
    call_id = f"c1-{door.name}"
    token = issued(door, call_id)
    async with door.manager() as manager:
        async with manager.under(token, call_id=call_id) as governed:
            assert (await governed.execute_code("python", "print(1)")).stdout == "1\n"
            heard: list[bytes] = []
            result = await governed.execute_code("python", "print(2)", on_output=lambda _, data: heard.append(data))
            assert (result.stdout, b"".join(heard)) == ("2\n", b"2\n")
            with pytest.raises(Denied) as refusal:
                await governed.execute_shell("ls")
            assert refusal.value.reason == "tool_mismatch"
        with pytest.raises(Denied) as refusal:
            await governed.execute_code("python", "print('RAN')")
        assert refusal.value.reason == "replayed"
        async with manager.under(token, call_id=call_id) as again:
            with pytest.raises(Denied) as refusal:
                await again.execute_code("python", "print('RAN')")
            assert refusal.value.reason == "replayed"
        assert (await manager.execute_code("python", "print(3)")).success


@pytest.mark.parametrize("token", ["", "no token", "EnYK" * 100])
async def test_what_is_no_grant_lets_nothing_run(door: Door, token: str) -> None:
    async with door.manager() as manager:
        with pytest.raises((Denied, InvalidRequest)):
            async with manager.under(token, call_id="c3") as governed:
                await governed.execute_code("python", "print('RAN')")


async def test_a_grant_of_another_call_is_refused(door: Door) -> None:
    token = issued(door, "c4")
    async with door.manager() as manager, manager.under(token, call_id="c5") as governed:
        with pytest.raises(Denied) as refusal:
            await governed.execute_code("python", "print('RAN')")
        assert refusal.value.reason == "call_mismatch"


async def test_operations_are_held_to_it_too_and_their_space_goes_with_the_call(door: Door) -> None:
    call_id = f"c6-{door.name}"
    token = issued(door, call_id, "tmp_use")
    async with door.manager("granted") as manager:
        async with manager.under(token, call_id=call_id) as governed:
            handle = (await governed.perform(TmpAlloc(1024))).out["handle"]
            with pytest.raises(Denied):
                await governed.perform(FsWrite("work/a", b""))
        with pytest.raises(RingfenceError):
            await manager.perform(FsRead(f"{handle}/a"))


async def test_a_service_never_leaves_a_grant_out_where_it_has_no_use_for_it(door: Door) -> None:
    if door.name == "embedded":
        pytest.skip("there is no service here")
    async with door.manager("left-out") as manager, manager.under(issued(door, "c7"), call_id="c7") as governed:
        for wanted in (governed.start_process("echo RAN"), governed.skills()):
            with pytest.raises(InvalidRequest) as refused:
                await wanted
            assert refused.value.reason == "not_in_this_version"
