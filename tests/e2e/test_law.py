"""A policy file at work: what it does not allow is refused before anything runs, through every door there is."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence as ringfence_command

import ringfence
from ringfence import InvalidRequest, SandboxManager
from ringfence.errors import CapabilityBlocked, Denied, IsolationUnavailable, QuotaExceeded, ToolDenied
from ringfence.operation.brokered import FsList, FsRead, FsWrite, TmpAlloc
from ringfence.portal import portal

pytestmark = [pytest.mark.needs("native")]

DOCUMENT = Path(__file__).parents[1] / "unit" / "authority" / "sandbox_policy.yaml"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Return a copy of the documents' own example that a test may change."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(DOCUMENT.read_bytes())
    return path


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


async def test_the_documents_example_policy_governs_runs(policy: Path, tmp_path: Path) -> None:
    async with SandboxManager(policy_file=policy, role="code_assistant", home=tmp_path) as manager:
        result = await manager.execute_code("python", "print(6 * 7)")
        assert (result.stdout, result.risk) == ("42\n", "high")
        assert (await manager.execute_shell("ls /workspace")).success
        with pytest.raises(ToolDenied, match="curl"):
            await manager.execute_shell("ls; curl http://example.com")
        with pytest.raises(ToolDenied):  # the example lists python, javascript and typescript for code_run
            await manager.execute_code("bash", "sudo ls")


async def test_a_role_may_use_its_own_tools_only(policy: Path, tmp_path: Path) -> None:
    async with SandboxManager(policy_file=policy, role="nobody", home=tmp_path) as manager:
        with pytest.raises(ToolDenied, match="no role 'nobody'"):
            await manager.execute_code("python", "print(1)")


async def test_the_time_limit_is_the_policys(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {code_run: {max_execution_time: 1s}}}\n")
    async with SandboxManager(policy_file=policy, home=tmp_path) as manager:
        result = await manager.execute_code("python", "while True: pass")
        assert (result.status, result.reason) == ("timed_out", "wall_timeout")
        with pytest.raises(InvalidRequest, match="exceeds the policy's 1 s"):
            await manager.execute_code("python", "print(1)", timeout=2)
        assert (await manager.execute_code("python", "print(1)", timeout=0.5)).success


async def test_a_changed_policy_counts_from_the_next_call_on_and_a_broken_one_changes_nothing(
    policy: Path, tmp_path: Path
) -> None:
    async with SandboxManager(policy_file=policy, home=tmp_path) as manager:
        assert (await manager.execute_code("python", "print(1)")).success
        rewrite(policy, "policies: {tools: {code_run: {supported_languages: [javascript]}}}\n")
        with pytest.raises(Denied):
            await manager.execute_code("python", "print(1)")
        rewrite(policy, "policies: {tools: {code_run: {supported_langages: [python]}}}\n")
        with pytest.raises(Denied):
            await manager.execute_code("python", "print(1)")
        rewrite(policy, DOCUMENT.read_text())
        assert (await manager.execute_code("python", "print(1)")).success


async def test_a_program_that_steps_into_a_project_takes_no_policy_and_no_home_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the documents' own example, the policy is named without saying where it lies."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for place, languages in ((ours, "[javascript]"), (theirs, "[python]")):
        place.mkdir()
        rewrite(
            place / "sandbox_policy.yaml", f"policies: {{tools: {{code_run: {{supported_languages: {languages}}}}}}}\n"
        )
    monkeypatch.chdir(ours)
    async with SandboxManager(policy_file="sandbox_policy.yaml", home="home", pool_size=0) as manager:
        monkeypatch.chdir(theirs)
        with pytest.raises(Denied):
            await manager.execute_code("python", "print('RAN')")
        # nor is another manager, which does mean the one of the project, taken for this one
        async with SandboxManager(policy_file="sandbox_policy.yaml", home="home", pool_size=0) as other:
            assert (await other.execute_code("python", "print(1)")).success
        with pytest.raises(Denied):
            await manager.execute_code("python", "print('RAN')")


async def test_isolation_that_is_not_here_is_refused_and_nothing_weaker_taken(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {isolation: microvm}}\n")
    async with SandboxManager(policy_file=policy, home=tmp_path) as manager:
        with pytest.raises(IsolationUnavailable, match="microvm"):
            await manager.execute_code("python", "print('RAN')")


async def test_a_mode_that_asks_denies_where_nobody_can_be_asked(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("mode: ask\npolicies: {}\n")
    async with SandboxManager(policy_file=policy, home=tmp_path) as manager:
        with pytest.raises(Denied) as refusal:
            await manager.execute_code("python", "print('RAN')")
        assert (refusal.value.reason, refusal.value.answer.exit_code) == ("consent_required", 4)


def test_a_broken_policy_is_told_with_its_place(tmp_path: Path) -> None:
    portal()  # the one thread that stays with a process, whichever call of it was the first
    before = threading.enumerate()
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  default:\n    max_memroy: 512MB\n")
    with pytest.raises(InvalidRequest, match=r"policy.yaml:3.*max_memroy") as refusal:
        ringfence.run("print(1)", policy_file=policy, home=tmp_path)
    assert refusal.value.reason == "invalid_policy"
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("ringfence-") and thread not in before
    ]


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        (["run", "-c", "print(1)"], 0, None),
        (["run", "--role", "nobody", "-c", "print(1)"], 3, "POLICY.DENY_TOOL"),
        (["shell", "--", "sudo ls"], 3, "POLICY.DENY_TOOL"),
    ],
)
def test_the_command_obeys_it_too(policy: Path, words: list[str], exit_code: int, code: str | None) -> None:
    command, *rest = words
    done = subprocess.run(
        [sys.executable, "-m", "ringfence", command, "--json", "--policy", str(policy), *rest],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    said = json.loads(done.stdout)
    assert said.get("code", said.get("error_code")) == code


def test_a_budget_holds_across_processes_and_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {}\nbudgets: {tenant: {local: {calls: 2}}}\n")
    argv = [sys.executable, "-m", "ringfence", "run", "--policy", str(policy), "-c", "print(1)"]
    environment = {**os.environ, "RINGFENCE_HOME": str(tmp_path / "home")}
    done = [
        subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environment, check=False) for _ in range(3)
    ]
    assert [each.returncode for each in done] == [0, 0, 5], done[2].stderr
    assert "QUOTA.BUDGET_EXCEEDED" in done[2].stderr


async def test_no_more_calls_of_a_tool_run_at_once_than_the_policy_says(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {code_run: {max_concurrency: 1}}}\n")
    async with SandboxManager(home=tmp_path / "home", policy_file=policy, pool_size=0) as manager:
        clock = "import time; began = time.monotonic(); time.sleep(0.3); print(began, time.monotonic())"
        ran = await asyncio.gather(*(manager.execute_code("python", clock) for _ in range(3)))
        times = sorted(tuple(map(float, result.stdout.split())) for result in ran)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))
        with pytest.raises(QuotaExceeded) as refused:
            await asyncio.gather(*(manager.execute_code("python", clock, timeout=0.35) for _ in range(3)))
        assert refused.value.reason == "concurrency"
        shell = await asyncio.gather(*(manager.execute_shell("sleep 0.2") for _ in range(2)))
        assert all(result.success for result in shell)


def test_spaces_and_users_have_budgets_of_their_own(tmp_path: Path) -> None:
    policy = tmp_path / "budgets.yaml"
    policy.write_text("policies: {}\nbudgets: {space: {'*': {calls: 1}}, user: {ann: {calls: 1}}}\n")

    def run(*whose: str) -> int:
        words = [word for name in whose for word in ("--correlate", name)]
        return ringfence_command(tmp_path / "home", "run", "--policy", str(policy), *words, "-c", "1").returncode

    assert [run("space=one"), run("space=one"), run("space=two"), run()] == [0, 5, 0, 0]
    assert [run("user=ann"), run("user=ann"), run("user=bob"), run("user=bob")] == [0, 5, 0, 0]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return the command that issues, narrows and revokes grants of a home with a key; it gives what it prints."""
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path))

    def command(*words: str, given: str = "") -> str:
        argv = [sys.executable, "-m", "ringfence", *words]
        done = subprocess.run(argv, capture_output=True, text=True, input=given, timeout=60, check=True)
        return done.stdout.strip()

    command("key", "create")
    return command


def issued(desk: Callable[..., str], *more: str) -> str:
    """Return a token for code in the call c1."""
    return desk("grant", "issue", "--tool", "code_run", "--call", "c1", *more)


@pytest.mark.needs("biscuit")
async def test_a_signed_grant_governs_one_call_and_is_used_up_with_it(desk: Callable[..., str], tmp_path: Path) -> None:
    token = issued(desk)
    async with SandboxManager(home=tmp_path) as manager:
        async with manager.under(token, call_id="c1") as governed:
            assert (await governed.execute_code("python", "print(1)")).stdout == "1\n"
            assert (await governed.execute_code("python", "print(2)")).stdout == "2\n"
            with pytest.raises(Denied) as refusal:  # it is for another tool
                await governed.execute_shell("ls")
            assert refusal.value.reason == "tool_mismatch"
        async with manager.under(token, call_id="c1") as again:
            with pytest.raises(Denied) as refusal:
                await again.execute_code("python", "print('RAN')")
            assert refusal.value.reason == "replayed"
        async with manager.under(issued(desk), call_id="c1") as unused:
            pass
        with pytest.raises(Denied) as refusal:  # nothing was done in it, and it is over all the same
            await unused.execute_code("python", "print('RAN')")
        assert refusal.value.reason == "replayed"
        async with manager.under(issued(desk), call_id="c2") as other:
            with pytest.raises(Denied) as refusal:
                await other.execute_code("python", "print('RAN')")
            assert refusal.value.reason == "call_mismatch"
        assert (await manager.execute_code("python", "print(3)")).success  # without a grant, as before


@pytest.mark.needs("biscuit")
async def test_the_signature_of_a_token_is_checked_once_however_often_it_is_shown(
    desk: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringfence.grants.biscuit import BiscuitCodec

    checked: list[str] = []
    verified = BiscuitCodec._verified

    def counted(codec: BiscuitCodec, token: str, public: bytes) -> Any:
        checked.append(token)
        return verified(codec, token, public)

    monkeypatch.setattr(BiscuitCodec, "_verified", counted)
    first, second = issued(desk), issued(desk)
    async with SandboxManager(home=tmp_path) as manager:
        for token in (first, second):
            async with manager.under(token, call_id="c1") as governed:
                for _ in range(3):
                    assert (await governed.execute_code("python", "1")).success
    assert checked == [first, second]


@pytest.mark.needs("biscuit")
async def test_operations_in_one_call_spend_its_calls_and_none_more_runs(
    desk: Callable[..., str], tmp_path: Path
) -> None:
    token = desk("grant", "issue", "--tool", "file_write", "--call", "c1", "--budget", "calls=2")
    async with SandboxManager("s", home=tmp_path, pool_size=0) as manager:
        async with manager.under(token, call_id="c1") as governed:
            for name in ("a", "b"):
                await governed.perform(FsWrite(f"work/{name}", b"x"))
            with pytest.raises(QuotaExceeded) as refusal:
                await governed.perform(FsWrite("work/c", b"x"))
            assert refusal.value.reason == "calls"
            # also all at once, and refused ones cost nothing that comes back
            refused = await asyncio.gather(
                *(governed.perform(FsWrite(f"work/d{at}", b"x")) for at in range(3)), return_exceptions=True
            )
            assert [type(each) for each in refused] == [QuotaExceeded] * 3
        assert {entry["name"] for entry in (await manager.perform(FsList("work"))).out["entries"]} == {"a", "b"}


@pytest.mark.needs("biscuit")
async def test_a_revoked_grant_stops_in_the_middle_of_its_call(desk: Callable[..., str], tmp_path: Path) -> None:
    token = issued(desk)
    async with SandboxManager(home=tmp_path) as manager, manager.under(token, call_id="c1") as governed:
        assert (await governed.execute_code("python", "print(1)")).success
        desk("grant", "revoke", token)
        with pytest.raises(Denied) as refusal:
            await governed.execute_code("python", "print('RAN')")
        assert refusal.value.reason == "revoked"


@pytest.mark.needs("biscuit")
@pytest.mark.parametrize(("ends", "reason"), [("revoked", "revoked"), ("over", "expired")])
async def test_a_grant_that_ends_while_its_call_waits_for_a_place_runs_nothing(
    desk: Callable[..., str], tmp_path: Path, ends: str, reason: str
) -> None:
    token = issued(desk, *(() if ends == "revoked" else ("--ttl", "4s")))
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {code_run: {max_concurrency: 1}}}\n")
    governing = SandboxManager(home=tmp_path, policy_file=policy, session_id="s")
    async with governing as manager, manager.under(token, call_id="c1") as governed:
        first = asyncio.create_task(manager.execute_code("python", "import time; time.sleep(50)"))
        await asyncio.sleep(1)
        waiting = asyncio.create_task(governed.execute_code("python", "open('ran', 'w')"))
        await asyncio.sleep(1)
        if ends == "revoked":
            await asyncio.to_thread(desk, "grant", "revoke", token)
        else:
            await asyncio.sleep(4)
        first.cancel()  # so that there is a place for it
        with pytest.raises(Denied) as refusal:
            await waiting
        assert refusal.value.reason == reason
        assert not (await manager.execute_code("python", "import os; print(os.listdir())")).stdout.count("ran")


@pytest.mark.needs("biscuit")
async def test_a_grant_for_one_deployment_is_taken_by_the_one_of_that_name(
    desk: Callable[..., str], tmp_path: Path
) -> None:
    async def becomes(token: str) -> str:
        async with SandboxManager(home=tmp_path) as manager, manager.under(token, call_id="c1") as governed:
            try:
                return str((await governed.execute_code("python", "print(1)")).status)
            except Denied as refused:
                return refused.reason

    assert await becomes(issued(desk, "--audience", "site-a")) == "audience_mismatch"  # it has no name yet
    (tmp_path / "config.toml").write_text('[grants]\naudience = "site-a"\n')
    here, elsewhere = issued(desk, "--audience", "site-a"), issued(desk, "--audience", "site-b")
    assert desk("grant", "inspect", here).split()[:2] == ["good", "true"]
    with pytest.raises(subprocess.CalledProcessError) as bad:
        desk("grant", "inspect", elsewhere)
    assert bad.value.returncode == 3
    assert "audience_mismatch" in bad.value.stdout
    assert [await becomes(token) for token in (here, elsewhere, issued(desk))] == [
        "succeeded", "audience_mismatch", "succeeded",
    ]  # fmt: skip
    for wrong in ("audience = 5", 'audience = ""', 'name = "site-a"'):
        (tmp_path / "config.toml").write_text(f"[grants]\n{wrong}\n")
        with pytest.raises(InvalidRequest) as refused:
            await becomes(here)
        assert refused.value.reason == "invalid_config"


@pytest.mark.needs("biscuit")
async def test_a_grant_never_widens_the_policy(desk: Callable[..., str], tmp_path: Path) -> None:
    token = issued(desk)
    policy = tmp_path / "policy.yaml"
    rewrite(policy, "policies: {tools: {code_run: {supported_languages: [javascript]}}}\n")
    governing = SandboxManager(home=tmp_path, policy_file=policy)
    async with governing as manager, manager.under(token, call_id="c1") as governed:
        with pytest.raises(Denied):
            await governed.execute_code("python", "print('RAN')")


@pytest.mark.needs("biscuit")
async def test_one_changed_byte_of_a_token_runs_nothing(desk: Callable[..., str], tmp_path: Path) -> None:
    token = issued(desk)
    async with SandboxManager(home=tmp_path) as manager:
        for at in range(0, len(token), 97):
            changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
            async with manager.under(changed, call_id="c1") as governed:
                with pytest.raises(Denied):
                    await governed.execute_code("python", "print('RAN')")


@pytest.mark.needs("biscuit")
async def test_a_grant_governs_files_too_and_temporary_space_is_its_calls_own(
    desk: Callable[..., str], tmp_path: Path
) -> None:
    token = desk("grant", "issue", "--tool", "file_read", "--call", "c1", "--allow", "fs.read:/workspace/work/open")
    space = desk("grant", "issue", "--tool", "tmp_use", "--call", "c2")
    async with SandboxManager("s", home=tmp_path, pool_size=0) as manager:
        for name in ("open/a", "shut/a"):
            await manager.perform(FsWrite(f"work/{name}", b"x"))
        async with manager.under(token, call_id="c1") as governed:
            assert (await governed.perform(FsRead("work/open/a"))).content == b"x"
            for operation in (FsRead("work/shut/a"), FsWrite("work/open/b", b"x")):
                with pytest.raises(Denied):
                    await governed.perform(operation)
        async with manager.under(space, call_id="c2") as governed:
            handle = (await governed.perform(TmpAlloc(10))).out["handle"]
            with pytest.raises(CapabilityBlocked):
                await manager.perform(FsList(handle))
        (holder,) = (tmp_path / "tmp").iterdir()
        assert list(holder.iterdir()) == []
