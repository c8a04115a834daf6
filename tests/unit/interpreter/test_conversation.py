"""Cells through the real driver, in a plain process of its own: what the box adds is tested with the box."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest
from ringfence.interpreter import driver, frames
from ringfence.interpreter.conversation import Cell, Conversation
from ringfence.interpreter.frames import BrokenSession, Frame
from ringfence.outcome import ExecutionResult, Status

LIMITS = Limits()
DRIVER = Path(driver.__file__).read_text()


class LocalInterpreter:
    """The driver as a child of the test."""

    def __init__(self, process: asyncio.subprocess.Process, hear: Callable[[str, bytes], None]) -> None:
        self._process = process
        self._pump = asyncio.ensure_future(self._read(hear))

    async def _read(self, hear: Callable[[str, bytes], None]) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(1 << 16):
            hear("stdout", data)

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> ExecutionResult:
        code = await self._process.wait()
        await self._pump
        return ExecutionResult(Status.SUCCEEDED if code == 0 else Status.FAILED, exit_code=code)


@asynccontextmanager
async def conversation(program: str | None = None) -> AsyncIterator[Conversation]:
    code = DRIVER if program is None else program
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
    )
    talk = Conversation()
    local = LocalInterpreter(process, talk.hear)
    talk.attach(local)
    try:
        yield talk
    finally:
        await local.kill()
        await process.wait()


def out(cell: Cell) -> str:
    return cell.stdout.finish()[0].decode()


def value(cell: Cell) -> str | None:
    return None if cell.done is None else cell.done.value


async def test_variables_functions_and_imports_are_kept_from_cell_to_cell() -> None:
    async with conversation() as talk:
        assert value(await talk.run("x = 20\ndef f(n):\n    return n + 1\nimport math", LIMITS)) is None
        assert value(await talk.run("f(x) * 2", LIMITS)) == "42"
        assert value(await talk.run("_ + math.floor(0.5)", LIMITS)) == "42"


async def test_output_of_the_cell_and_of_its_children_is_told_before_its_end() -> None:
    async with conversation() as talk:
        for number in range(20):
            cell = await talk.run(
                f"import os, sys\nprint({number}); os.system('echo child'); print('err', file=sys.stderr)", LIMITS
            )
            assert sorted(out(cell).split()) == sorted([str(number), "child"])
            assert cell.stderr.finish()[0] == b"err\n"


async def test_an_error_has_the_lines_of_the_cell_and_none_of_ours() -> None:
    async with conversation() as talk:
        cell = await talk.run("def f():\n    return 1 / 0\nf()", LIMITS)
        assert cell.status is Status.FAILED
        assert cell.done is not None
        assert cell.done.error == "ZeroDivisionError: division by zero"
        shown = cell.stderr.finish()[0].decode()
        assert "<cell 1>" in shown
        assert "return 1 / 0" in shown
        assert "run_cell" not in shown
        assert value(await talk.run("1 + 1", LIMITS)) == "2"


async def test_await_works_at_the_top_of_a_cell() -> None:
    async with conversation() as talk:
        await talk.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7", LIMITS)
        assert value(await talk.run("await f()", LIMITS)) == "7"


async def test_what_draws_itself_becomes_an_artifact() -> None:
    async with conversation() as talk:
        table = "class T:\n    def _repr_html_(self):\n        return '<table></table>'\nT()"
        cell = await talk.run(table, LIMITS)
        assert cell.done is not None
        assert [(a.path, a.content) for a in cell.done.artifacts] == [("cell-1-1.html", b"<table></table>")]


async def test_a_figure_that_is_open_becomes_a_picture() -> None:
    figure = (
        "import sys, types\nplt = types.ModuleType('matplotlib.pyplot')\nplt.get_fignums = lambda: [1]\n"
        "class F:\n    def savefig(self, to, format): to.write(b'PNG')\n"
        "plt.figure = lambda n: F()\nplt.close = lambda which: None\nsys.modules['matplotlib.pyplot'] = plt"
    )
    async with conversation() as talk:
        cell = await talk.run(figure, LIMITS)
        assert cell.done is not None
        assert [(a.path, a.content) for a in cell.done.artifacts] == [("cell-1-1.png", b"PNG")]


async def test_a_cell_beyond_its_time_is_interrupted_and_the_variables_live_on() -> None:
    async with conversation() as talk:
        await talk.run("x = 1", LIMITS)
        cell = await talk.run("while True: pass", Limits(wall_seconds=0.3))
        assert (cell.status, cell.killed_by) == (Status.TIMED_OUT, "wall_timeout")
        assert value(await talk.run("x", LIMITS)) == "1"


async def test_a_cell_that_will_not_be_interrupted_takes_the_session_with_it() -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    async with conversation() as talk:
        cell = await talk.run(stubborn, Limits(wall_seconds=0.3))
        assert cell.status is Status.TIMED_OUT
        assert talk.is_over
        with pytest.raises(InvalidRequest, match="session is over"):
            await talk.run("1", LIMITS)


async def test_who_cancels_a_cell_interrupts_it() -> None:
    async with conversation() as talk:
        await talk.run("x = 5", LIMITS)
        is_on = asyncio.Event()
        running = asyncio.ensure_future(
            talk.run("import time\nprint('on', flush=True)\ntime.sleep(60)", LIMITS, lambda *_: is_on.set())
        )
        await is_on.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert value(await talk.run("x", LIMITS)) == "5"


async def test_exit_ends_the_session_with_its_status() -> None:
    async with conversation() as talk:
        cell = await talk.run("print('bye'); raise SystemExit(3)", LIMITS)
        assert cell.done is not None
        assert (cell.status, cell.done.ended, cell.done.status, out(cell)) == (Status.FAILED, True, 3, "bye\n")


async def test_a_process_that_dies_in_a_cell_is_said_to_have() -> None:
    async with conversation() as talk:
        cell = await talk.run("import os\nos._exit(9)", LIMITS)
        assert cell.done is None
        assert cell.status is Status.FAILED
        assert cell.session is not None
        assert cell.session.exit_code == 9


async def test_a_fork_is_no_second_interpreter() -> None:
    async with conversation() as talk:
        cell = await talk.run("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)", LIMITS)
        assert cell.status is Status.SUCCEEDED
        assert value(await talk.run("pid > 0", LIMITS)) == "True"


async def test_cells_of_two_callers_wait_for_each_other() -> None:
    async with conversation() as talk:
        await talk.run("x = 0", LIMITS)
        await asyncio.gather(*(talk.run("x += 1", LIMITS) for _ in range(10)))
        assert value(await talk.run("x", LIMITS)) == "10"


async def test_output_beyond_its_cap_is_counted_and_not_kept() -> None:
    async with conversation() as talk:
        cell = await talk.run("print('x' * 1_000_000)", Limits(stdout_bytes=1000))
        assert cell.stdout.seen == 1_000_001
        assert cell.stdout.held <= 1200


@pytest.mark.parametrize(
    "forged",
    [
        b"this is no frame of anybody",
        b"\x03\x00\x00\x00\x02{}",
        b"\x03\x00\x00\x00\x0b" + b'{"cell":99}',
        b"\x03\x00\x00\x00\x0d" + b'{"cell":true}',
        b"\x03\xff\xff\xff\xff",
        b"\x09\x00\x00\x00\x00",
    ],
)
async def test_a_box_that_does_not_speak_our_language_is_ended(forged: bytes) -> None:
    program = f"import os\nos.read(0, 65536)\nos.write(1, {forged!r})\nimport time\ntime.sleep(60)"
    async with conversation(program) as talk:
        cell = await talk.run("1", LIMITS)
        assert cell.status is not Status.SUCCEEDED
        assert talk.is_over


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 300, "a\nb", "ä"])
def test_an_artifact_cannot_be_called_what_is_no_file_name(name: str) -> None:
    import json

    payload = json.dumps({"cell": 1, "artifacts": [{"name": name, "b64": ""}]}).encode()
    with pytest.raises(BrokenSession):
        frames.read_done(payload, most_artifact_bytes=100)


def test_more_artifacts_than_allowed_are_named_and_left_out() -> None:
    import json

    shown = [{"name": f"{n}.png", "b64": "AAAA"} for n in range(3)]
    done = frames.read_done(json.dumps({"cell": 1, "artifacts": shown}).encode(), most_artifact_bytes=6)
    assert [a.path for a in done.artifacts] == ["0.png", "1.png"]
    assert done.notes == ("artifact 2.png was not collected: too much",)


@given(st.lists(st.tuples(st.sampled_from(list(Frame)), st.binary(max_size=50))), st.integers(1, 7))
def test_frames_are_read_the_same_however_they_are_cut(said: list[tuple[Frame, bytes]], size: int) -> None:
    stream = b"".join(bytes([kind]) + len(payload).to_bytes(4, "big") + payload for kind, payload in said)
    reader = frames.Reader()
    heard = [each for at in range(0, len(stream), size) for each in reader.feed(stream[at : at + size])]
    assert heard == said
