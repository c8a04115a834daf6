"""Processes, sessions, skills and workspaces are the same to whoever has a manager, wherever they run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.manager_doors import Door

from ringfence import InvalidRequest, RingfenceError, Status
from ringfence.processes.process import Process

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(120), pytest.mark.once]
ECHO = "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"


async def test_a_process_is_fed_heard_and_waited_for(door: Door) -> None:
    async with door.manager("fed") as manager:
        process = await manager.start_process(language="python", code=ECHO)
        assert isinstance(process, Process)
        assert (process.state, process.exit_code, process.terminal) == (Status.RUNNING, None, None)
        await process.send("hello\n")
        said = await process.poll(wait_seconds=20)
        assert (said.state, said.stdout.data, said.stdout.next_offset, said.stdout.lost_bytes) == (
            Status.RUNNING,
            b"HELLO\n",
            6,
            0,
        )
        await process.send(b"again\n", end=True)
        result = await process.wait()
        assert (result.status, result.stdout, result.exec_id) == (Status.SUCCEEDED, "HELLO\nAGAIN\n", process.exec_id)
        assert (process.state, process.exit_code) == (Status.SUCCEEDED, 0)
        with pytest.raises(InvalidRequest):
            await process.send("more\n")


async def test_a_process_is_streamed_from_any_place(door: Door) -> None:
    async with door.manager() as manager:
        process = await manager.start_process("for i in 1 2 3; do echo $i; done; echo no >&2; exit 3")
        pieces = [piece async for piece in process.stream()]
        assert b"".join(data for name, _, data in pieces if name == "stdout") == b"1\n2\n3\n"
        assert b"".join(data for name, _, data in pieces if name == "stderr") == b"no\n"
        assert b"".join([data async for name, _, data in process.stream(2) if name == "stdout"]) == b"2\n3\n"
        assert (await process.wait()).exit_code == 3


async def test_a_process_is_found_listed_and_killed(door: Door) -> None:
    async with door.manager(f"listed-{door.name}") as manager:
        process = await manager.start_process("sleep 1000")
        again = await manager.process(process.process_id)
        assert (again.process_id, again.exec_id, again.state) == (process.process_id, process.exec_id, Status.RUNNING)
        (info,) = [each for each in await manager.processes() if each.process_id == process.process_id]
        assert (info.language, info.session_id, info.state) == ("bash", f"listed-{door.name}", Status.RUNNING)
        await again.kill()
        assert (await process.wait()).status in (Status.CANCELLED, Status.KILLED)
        await process.kill()


async def test_a_process_on_a_terminal_has_its_size_and_is_interrupted(door: Door) -> None:
    async with door.manager() as manager:
        process = await manager.start_process("stty size; exec sleep 1000", terminal=(30, 90))
        assert (await process.poll(wait_seconds=20)).stdout.data == b"30 90\r\n"
        await process.resize(40, 100)
        assert process.info.terminal == (40, 100)
        await process.interrupt()
        assert not (await process.wait()).success


async def test_a_process_that_nobody_started_is_refused_alike(door: Door) -> None:
    async with door.manager() as manager, door.embedded() as embedded:
        with pytest.raises(InvalidRequest) as refused:
            await manager.process("pr_none")
        with pytest.raises(InvalidRequest) as expected:
            await embedded.process("pr_none")
    assert (str(refused.value), refused.value.reason) == (str(expected.value), expected.value.reason)


@pytest.mark.parametrize("options", [{"terminal": (0, 1)}, {"language": "cobol", "code": "1"}, {"idle_timeout": -1}])
async def test_a_process_that_cannot_be_is_refused_alike(door: Door, options: dict[str, Any]) -> None:
    command = None if "code" in options else "true"
    async with door.manager() as manager, door.embedded() as embedded:
        with pytest.raises(RingfenceError) as refused:
            await manager.start_process(command, **options)
        with pytest.raises(RingfenceError) as expected:
            await embedded.start_process(command, **options)
    assert (type(refused.value), str(refused.value)) == (type(expected.value), str(expected.value))


# --- sessions ---


async def test_a_session_keeps_its_variables_and_tells_values(door: Door) -> None:
    async with door.manager() as manager, manager.session() as session:
        assert (await session.run("x = 20")).value is None
        result = await session.run("print('y')\nx + 1")
        assert (result.value, result.stdout, result.status) == ("21", "y\n", Status.SUCCEEDED)
        assert (await session.run("1 / 0")).status is Status.FAILED
        assert (await session.run("x")).value == "20"


async def test_a_cell_that_takes_too_long_is_interrupted_and_its_session_lives(door: Door) -> None:
    async with door.manager() as manager, manager.session() as session:
        await session.run("x = 1")
        assert (await session.run("while True: pass", timeout=0.5)).status is Status.TIMED_OUT
        assert (await session.run("x")).value == "1"


async def test_what_a_cell_leaves_are_artifacts(door: Door) -> None:
    async with door.manager("cells") as manager, manager.session() as session:
        await session.run("class Table:\n    def _repr_html_(self): return '<b>1</b>'")
        (artifact,) = (await session.run("Table()")).artifacts
        assert (artifact.path, await asyncio.to_thread(artifact.read)) == ("cell-2-1.html", b"<b>1</b>")


# --- skills ---


async def test_skills_are_listed_and_called_alike(door: Door) -> None:
    async with door.manager("skills") as manager, door.embedded("skills") as embedded:
        listed = {skill.id: skill.to_dict() for skill in await manager.skills()}
        assert listed == {skill.id: skill.to_dict() for skill in await embedded.skills()}
        assert {"shell.run", "python.run", "file.search"} <= listed.keys()
        outcome = await manager.invoke("python.run", {"code": "print(6 * 7)"})
        expected = await embedded.invoke("python.run", {"code": "print(6 * 7)"})
    assert (outcome.skill_id, outcome.success, outcome.reason) == (expected.skill_id, True, None)
    assert outcome.outputs == expected.outputs


async def test_a_skill_that_is_none_is_refused_alike(door: Door) -> None:
    async with door.manager("skills") as manager, door.embedded("skills") as embedded:
        for skill_id, inputs in (("no.such", {}), ("python.run", {"code": 7})):
            with pytest.raises(InvalidRequest) as refused:
                await manager.invoke(skill_id, inputs)
            with pytest.raises(InvalidRequest) as expected:
                await embedded.invoke(skill_id, inputs)
            assert (str(refused.value), refused.value.reason) == (str(expected.value), expected.value.reason)


# --- the workspace ---


async def test_a_workspace_is_written_compared_kept_and_restored(door: Door) -> None:
    async with door.manager(f"workspace-{door.name}") as manager:
        files = manager.workspace
        await files.write("a.txt", "one\n")
        kept = await files.snapshot("first")
        await files.write("a.txt", "two\n")
        assert await files.read("a.txt") == b"two\n"
        assert [entry["name"] for entry in await files.list()] == ["a.txt"]
        difference = await files.diff(kept["snapshot_id"])
        assert [(entry["path"], entry["change"]) for entry in difference["changes"]] == [("a.txt", "modified")]
        assert "-one\n+two\n" in difference["patch"]
        assert len(await files.snapshots()) >= 1
        await files.restore(kept["snapshot_id"])
        assert await files.read("a.txt") == b"one\n"
        await files.reset()
        assert await files.list() == []


async def test_a_run_that_asks_first_is_shown_committed_or_discarded(door: Door) -> None:
    async with door.manager(f"asking-{door.name}") as manager:
        await manager.execute_shell("echo one > a.txt")
        first = await manager.execute_shell("echo two > a.txt; echo new > b.txt", commit="ask")
        assert first.pending is not None
        assert (first.pending.added, first.pending.modified) == (("b.txt",), ("a.txt",))
        assert "-one\n+two\n" in first.pending.diff
        assert [each.exec_id for each in await manager.pending()] == [first.exec_id]
        assert (await manager.execute_shell("cat a.txt")).stdout == "one\n"
        await manager.commit(first.exec_id)
        assert (await manager.execute_shell("cat a.txt b.txt")).stdout == "two\nnew\n"
        second = await manager.execute_shell("rm a.txt", commit="ask")
        await manager.discard(second.exec_id)
        assert (await manager.execute_shell("cat a.txt")).stdout == "two\n"
        for decide in (manager.commit, manager.discard):
            with pytest.raises(InvalidRequest) as refused:
                await decide(second.exec_id)
            assert refused.value.reason == "not_found"
