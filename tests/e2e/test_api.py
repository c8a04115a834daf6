"""The public API against real boxes, in the places programs call it from: loops, threads, forks, streams."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ringfence
from ringfence import ExecutionRequest, InvalidRequest, Limits, SandboxManager, Status, engines
from ringfence.streaming import MOST_UNREAD

pytestmark = pytest.mark.needs("native")
FOREVER = "print('started')\nwhile True: pass"
PACKAGES_TIMEOUT = pytest.mark.timeout(600)  # builds an environment


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RINGFENCE_HOME", str(path))
        yield path
        engines._end_all()
        engines._kept.clear()


def test_one_line_runs_code() -> None:
    result = ringfence.run("print(6 * 7)")
    assert (result.status, result.stdout, result.exit_code) == (Status.SUCCEEDED, "42\n", 0)
    assert result.exec_id.startswith("ex_")


async def test_one_line_also_works_inside_a_running_event_loop() -> None:
    assert ringfence.run("print(1)").stdout == "1\n"


def test_eight_threads_at_once_get_their_own_answers() -> None:
    answers: dict[int, str] = {}

    def thread(number: int) -> None:
        for _ in range(5):
            answers[number] = ringfence.run(f"print({number})").stdout

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == {number: f"{number}\n" for number in range(8)}


def test_a_manager_serves_several_event_loops() -> None:
    manager = SandboxManager()

    async def once() -> str:
        return (await manager.execute_code("python", "print(1)")).stdout

    assert [asyncio.run(once()) for _ in range(3)] == ["1\n"] * 3
    asyncio.run(manager.cleanup())


FORKING = """
import asyncio, os, sys
import ringfence
from ringfence import SandboxManager

manager = SandboxManager()
assert ringfence.run("print(open('f').read())", files={"f": "1"}).stdout == "1\\n"
assert asyncio.run(manager.execute_code("python", "print(1)")).stdout == "1\\n"
parents = {pid for pair in manager.pool_pids() for pid in pair}
child = os.fork()
if child == 0:
    code = 1
    try:
        # with a file, which a thread puts there: those of the parent are not here
        assert ringfence.run("print(open('f').read())", files={"f": "2"}).stdout == "2\\n"
        # a manager from before the fork must not hand out its parent's workers
        ids = {asyncio.run(manager.execute_code("python", "print(2)")).stdout for _ in range(5)}
        assert ids == {"2\\n"}
        assert not parents & {pid for pair in manager.pool_pids() for pid in pair}
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
still = {pid for pair in manager.pool_pids() for pid in pair}
assert len(parents & still) == len(parents), "the child used up or ended its parent's workers"
assert ringfence.run("import sys; print(sys.stdin.read())", stdin="3").stdout == "3\\n"
"""


def test_a_forked_child_has_boxes_of_its_own_and_leaves_its_parents_alone(home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING],
        env={**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


async def test_a_stream_has_every_chunk_in_order_and_then_the_result() -> None:
    code = "import sys\nfor i in range(500):\n    print(i)\nprint('end', file=sys.stderr)"
    async with SandboxManager() as manager:
        stream = manager.stream(ExecutionRequest(code))
        chunks = [chunk async for chunk in stream]
    assert b"".join(data for name, data in chunks if name == "stdout") == b"".join(b"%d\n" % i for i in range(500))
    assert b"".join(data for name, data in chunks if name == "stderr") == b"end\n"
    assert stream.result is not None
    assert stream.result.stdout_raw == b"".join(data for name, data in chunks if name == "stdout")


async def test_a_reader_who_does_not_read_costs_no_more_than_the_bound_and_learns_what_he_missed() -> None:
    code = "import os\nfor i in range(200): os.write(1, b'x' * 65536)\nos.write(1, b'the end')"
    async with SandboxManager() as manager:
        stream = manager.stream(ExecutionRequest(code))
        heard: list[bytes] = []
        async for _, data in stream:
            if not heard:
                await eventually(lambda: manager.pool_status()["busy"] == 0)
            heard.append(data)
    assert sum(map(len, heard)) < 2 * MOST_UNREAD
    missing = [int(found[1]) for data in heard if (found := re.match("\n?\\[… (\\d+) bytes".encode(), data))]
    assert len(missing) == 1
    assert heard[-1].endswith(b"the end")
    assert stream.result is not None
    assert stream.result.stdout_bytes == 200 * 65536 + 7


async def test_leaving_a_stream_early_ends_the_run() -> None:
    async with SandboxManager() as manager:
        async for name, data in manager.stream(ExecutionRequest(FOREVER)):
            assert (name, data) == ("stdout", b"started\n")
            assert manager.pool_status()["busy"] == 1
            break
        await eventually(lambda: manager.pool_status()["busy"] == 0)


async def test_cancelling_the_task_ends_the_run() -> None:
    async with SandboxManager() as manager:
        heard = asyncio.Event()
        run = asyncio.ensure_future(manager.execute_code("python", FOREVER, on_output=lambda *_: heard.set()))
        await heard.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert manager.pool_status()["busy"] == 0


def test_what_a_listener_raises_reaches_the_caller_and_the_run_is_over() -> None:
    class Mine(Exception):
        pass

    def listen(_: str, __: bytes) -> None:
        raise Mine

    with pytest.raises(Mine):
        ringfence.run(FOREVER, on_output=listen)


def test_a_memory_limit_below_what_a_worker_needs_never_looks_like_our_failure() -> None:
    try:
        result = ringfence.run("print(1)", limits=Limits(memory_bytes=64 * 1024))
        # v2 ends it at once; without a cgroup it may be over before anybody looks
        ended = not result.success or result.isolation.memory_limit == "sampled"
    except InvalidRequest as refusal:
        ended = refusal.reason == "invalid_limit"  # v1 refuses the number
    assert ended


async def test_a_session_keeps_its_files_and_others_do_not_see_them() -> None:
    async with SandboxManager("one") as one, SandboxManager("two") as two:
        for number in range(3):
            result = await one.execute_code("python", "open('log', 'a').write('x'); print(open('log').read())")
            assert result.stdout == "x" * (number + 1) + "\n"
        assert (await two.execute_shell("ls")).stdout == ""


async def test_the_runs_of_one_session_at_once_each_see_a_whole_state() -> None:
    async with SandboxManager("crowded") as manager:
        await manager.execute_code("python", "open('n', 'w').write('0' * 1000)")
        whole = "text = open('n').read(); assert len(set(text)) == 1 and len(text) == 1000, text"
        code = whole + "; open('n', 'w').write({} * 1000)"
        runs = (manager.execute_code("python", code.format(repr(str(digit)))) for digit in range(8))
        results = await asyncio.gather(*runs)
        assert [result.stderr for result in results if not result.success] == []


@PACKAGES_TIMEOUT
async def test_a_data_analysis_with_pandas_runs_as_an_agent_would_write_it() -> None:
    code = """
import pandas as pd
df = pd.read_csv('/workspace/inputs/sales.csv')
summary = df.groupby('region')['amount'].sum().sort_values(ascending=False)
print(summary.to_string())
summary.to_csv('/workspace/artifacts/summary.csv')
"""
    sales = "region,amount\nnorth,10\nsouth,5\nnorth,7\n"
    async with SandboxManager(packages=["pandas"]) as manager:
        result = await manager.execute_code("python", code, inputs={"sales.csv": sales})
        assert (result.stderr, result.exit_code) == ("", 0)
        assert result.stdout == "region\nnorth    17\nsouth     5\n"
        (artifact,) = result.artifacts
        assert artifact.read() == b"region,amount\nnorth,17\nsouth,5\n"


@PACKAGES_TIMEOUT
async def test_runs_that_share_a_preloaded_numpy_draw_different_numbers() -> None:
    code = (
        "import sys; assert 'numpy' in sys.modules; import numpy, random; print(numpy.random.random(), random.random())"
    )
    async with SandboxManager(packages=["numpy"], preload=["numpy", "numpy.random"]) as manager:
        results = [await manager.execute_code("python", code) for _ in range(4)]
    assert [result.stderr for result in results] == [""] * 4
    for column in (0, 1):
        assert len({result.stdout.split()[column] for result in results}) == 4


def test_a_preload_that_does_not_exist_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequest, match="importing no_such_module failed: ModuleNotFoundError") as refusal:
        ringfence.run("print(1)", preload=["no_such_module"])
    assert refusal.value.reason == "preload_failed"


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  the kernel and other threads make it true
        await asyncio.sleep(0.005)
