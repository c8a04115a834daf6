"""A service that is killed and started again under its clients: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import service_process

from ringfence import ExecutionRequest, RingfenceError, SandboxManager, Status, Unavailable
from ringfence.client.remote import Remote

pytestmark = [pytest.mark.needs("native"), pytest.mark.timeout(300)]


async def test_what_was_asked_for_once_runs_once_over_a_restart(tmp_path: Path, count: Callable[[int], int]) -> None:
    """Each run leaves a line of its own in the files of its project: two lines would be two runs."""
    service = service_process.start(tmp_path)
    runs = count(400)
    async with SandboxManager("counted", url=service.url, api_key=service.key) as manager:

        async def run(number: int) -> str:
            # a file of its own: an append to a shared one could be lost for reasons of its own
            result = await manager.execute_shell(f"echo x >> ran-{number}; cat ran-{number}")
            return "ended" if result.success else str(result.reason)

        tasks = [asyncio.ensure_future(run(number)) for number in range(runs)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.to_thread(service_process.stop, service, signal.SIGKILL)
        service = await asyncio.to_thread(service_process.start, tmp_path, port=service.port, key=service.key)
        try:
            endings = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            await asyncio.to_thread(service_process.stop, service)
    told = Counter(str(getattr(ending, "reason", ending)) for ending in endings)
    # what had begun when the service died is told as lost, and never begun again
    assert set(told) <= {"ended", "orphaned", "io"}, told
    assert told["ended"] > runs // 2, told
    work = tmp_path / "workspace/projects/counted/work"
    assert {path.name: path.read_text() for path in work.iterdir() if path.read_text() != "x\n"} == {}


async def test_a_drain_is_waited_out_by_whoever_asks_again(tmp_path: Path) -> None:
    service = service_process.start(tmp_path)
    async with SandboxManager(url=service.url, api_key=service.key) as manager:
        assert (await manager.execute_code("python", "print(1)")).success
        await asyncio.to_thread(service_process.stop, service)
        asked = asyncio.ensure_future(manager.execute_code("python", "print(2)"))
        await asyncio.sleep(0.2)
        assert not asked.done()
        service = await asyncio.to_thread(service_process.start, tmp_path, port=service.port, key=service.key)
        try:
            assert (await asked).stdout == "2\n"
        finally:
            await asyncio.to_thread(service_process.stop, service)


async def test_a_service_that_never_was_is_said_to_be_missing_at_once() -> None:
    async with SandboxManager(url="http://127.0.0.1:1", api_key="rfk_x") as manager:
        with pytest.raises(Unavailable) as refused:
            await asyncio.wait_for(manager.execute_code("python", "1"), 10)
    assert refused.value.reason == "connect_failed"
    assert "ringfence serve" in str(refused.value.fix)


async def test_a_key_that_is_none_is_refused(tmp_path: Path) -> None:
    service = service_process.start(tmp_path)
    try:
        async with SandboxManager(url=service.url, api_key="rfk_wrong") as manager:
            with pytest.raises(RingfenceError) as refused:
                await manager.execute_code("python", "1")
        assert (refused.value.code, refused.value.reason) == ("SANDBOX.PERMISSION_DENY", "no_key")
    finally:
        await asyncio.to_thread(service_process.stop, service)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_run_whose_task_was_cancelled_is_cancelled_there_before_the_task_is_done(
    tmp_path: Path, streaming: bool
) -> None:
    with service_process.running(tmp_path) as service:
        async with SandboxManager("c", url=service.url, api_key=service.key) as manager:
            on_output = (lambda *_: None) if streaming else None
            run = asyncio.ensure_future(manager.execute_shell("echo > begun; sleep 1000", on_output=on_output))
            asked = manager._service()
            assert asked is not None
            while not [each for each in await statuses(asked) if each == "running"]:
                assert not run.done()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert await statuses(asked) == ["cancelled"]


async def statuses(service: Remote) -> list[str]:
    answer = await service.call("GET", "/sandbox/execs?project_id=c")
    return [item["status"] for item in answer["items"]]


async def test_a_stream_that_is_cut_off_is_taken_up_again(tmp_path: Path) -> None:
    """The service goes on, and only the connection is lost: nothing is told twice and nothing is left out."""
    with service_process.running(tmp_path) as service:
        cut = _Cutting(service.port, after=20_000)
        await cut.start()
        async with SandboxManager(url=f"http://127.0.0.1:{cut.port}", api_key=service.key) as manager:
            stream = manager.stream(ExecutionRequest("for i in range(20_000): print(i)"))
            seen = b"".join([data async for _, data in stream])
        await cut.close()
        assert seen == b"".join(b"%d\n" % i for i in range(20_000))
        assert stream.result is not None
        assert stream.result.status is Status.SUCCEEDED
        assert cut.cuts > 0


class _Cutting:
    """A way to a service that breaks after so many bytes of an answer, as often as there are that many."""

    def __init__(self, port: int, *, after: int) -> None:
        self._behind, self._after = port, after
        self.cuts = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        there = asyncio.ensure_future(_copy(reader, back_writer))
        told = 0
        try:
            while data := await back_reader.read(4096):
                told += len(data)
                if told > self._after and self.cuts < 2:
                    self.cuts += 1
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            there.cancel()
            writer.close()
            back_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(4096):
        writer.write(data)
        await writer.drain()
