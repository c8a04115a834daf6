"""Whose processes there are, how many, and what is kept of them; with runs that a test ends by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from ringfence.attachment import Observed
from ringfence.errors import Denied, InvalidRequest, QuotaExceeded, Unavailable
from ringfence.outcome import ExecutionResult, Layers, SandboxType, Status
from ringfence.processes.records import Started
from ringfence.processes.registry import Bounds, Registry
from ringfence.processes.running import Running


@dataclass
class Journal:
    """Keeps what is written down, and refuses when told to."""

    written: list[dict[str, Any]] = field(default_factory=list)
    refuses: bool = False

    async def record(self, ev: dict[str, Any], documents: Any = ()) -> None:
        await asyncio.sleep(0)
        if self.refuses:
            raise Unavailable("the disk is full", reason="disk_full")
        self.written.append(ev)

    async def begin(self, ev: dict[str, Any], documents: Any = ()) -> None:
        raise AssertionError("a process writes no beginning of a run")

    note = begin

    async def on_disk(self) -> None:
        raise AssertionError("what is recorded is on the disk")

    async def end(self, ev: dict[str, Any], also: Any = None) -> None:
        raise AssertionError("a process writes no end of a run")


@dataclass
class Box:
    """A run whose guest does what the test says."""

    ends: asyncio.Future[ExecutionResult] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    sent: bytes = b""
    killed_by: list[str] = field(default_factory=list)
    running: Running | None = None
    observed: Observed = field(default_factory=lambda: Observed("rf-box", SandboxType.NATIVE, "scripted", Layers()))

    async def run(self, running: Running) -> ExecutionResult:
        self.running = running
        await running.attach(self)
        return await asyncio.shield(self.ends)

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def end_input(self) -> None:
        self.sent += b"<end>"

    def resize(self, rows: int, columns: int) -> None:
        self.sent += b"<%d %d>" % (rows, columns)

    def signal(self, number: int) -> None:
        self.sent += b"<%d>" % number

    def kill(self, why: str) -> None:
        self.killed_by.append(why)
        if not self.ends.done():
            self.ends.set_result(ExecutionResult(Status.CANCELLED, killed_by=why))

    def connect(self, port: int) -> int:
        raise AssertionError("nobody connects here")


class Counting:
    """Names and times that only go up."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers)}"

    def now_ms(self) -> int:
        return next(self._numbers)


def registry(journal: Journal | None = None, **bounds: int) -> Registry:
    counting = Counting()
    return Registry(journal or Journal(), counting, counting, Bounds(**bounds))


def about(name: str = "pr_a", tenant: str = "local") -> Started:
    return Started(name, f"ex_{name}", tenant, "somebody", "bash")


async def test_a_process_is_on_record_before_it_runs_and_when_it_is_over() -> None:
    journal, box = Journal(), Box()
    running = await registry(journal).start(about(), box.run)
    assert [each["type"] for each in journal.written] == ["process.started"]
    assert running.state is Status.RUNNING
    running.hear("stdout", b"four")
    box.ends.set_result(ExecutionResult(Status.FAILED, exit_code=3))
    assert (await running.wait()).exit_code == 3
    ended = journal.written[-1]
    assert (ended["type"], ended["outcome"], ended["exit_code"], ended["stdout_bytes"]) == (
        "process.ended",
        "failed",
        3,
        4,
    )


async def test_what_cannot_be_written_down_does_not_run() -> None:
    journal, box = Journal(refuses=True), Box()
    known = registry(journal)
    with pytest.raises(Unavailable):
        await known.start(about(), box.run)
    assert known.listed(None) == []
    assert box.running is not None
    assert not box.running.was_announced


async def test_what_the_pipeline_refuses_is_no_process() -> None:
    async def refused(_: Running) -> ExecutionResult:
        raise Denied("the policy says no")

    known, journal = registry(), Journal()
    with pytest.raises(Denied, match="says no"):
        await known.start(about(), refused)
    assert (known.listed(None), journal.written) == ([], [])


async def test_a_caller_that_leaves_before_it_runs_leaves_nothing_behind() -> None:
    async def never(_: Running) -> ExecutionResult:
        await asyncio.sleep(1000)
        raise AssertionError

    known = registry()
    starting = asyncio.ensure_future(known.start(about(), never))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [info.state for info in known.listed(None)] == [Status.QUEUED]
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert known.listed(None) == []


async def test_each_tenant_finds_its_own_and_cannot_tell_others_from_none() -> None:
    known = registry()
    await known.start(about("pr_a", "acme"), Box().run)
    await known.start(about("pr_b", "other"), Box().run)
    assert [info.process_id for info in known.listed("acme")] == ["pr_a"]
    assert [info.process_id for info in known.listed(None)] == ["pr_a", "pr_b"]
    assert known.find("acme", "pr_a").about.tenant == "acme"
    assert known.find(None, "pr_b").about.tenant == "other"
    texts = set()
    for name in ("pr_b", "pr_c"):
        with pytest.raises(InvalidRequest) as unknown:
            known.find("acme", name)
        texts.add((str(unknown.value), unknown.value.reason))
    assert texts == {("there is no such process", "not_found")}


async def test_a_tenant_cannot_use_up_what_is_for_all() -> None:
    known = registry(alive=3, alive_per_tenant=2)
    boxes = [Box(), Box()]
    for number, box in enumerate(boxes):
        await known.start(about(f"pr_{number}", "greedy"), box.run)
    with pytest.raises(QuotaExceeded) as full:
        await known.start(about("pr_9", "greedy"), Box().run)
    assert full.value.reason == "concurrency"
    await known.start(about("pr_3", "modest"), Box().run)
    with pytest.raises(QuotaExceeded):
        await known.start(about("pr_4", "another"), Box().run)
    await known.find(None, "pr_0").kill()
    await known.start(about("pr_5", "another"), Box().run)


async def test_four_greedy_tenants_leave_room_for_a_fifth_and_a_sixth() -> None:
    known, had = registry(), dict.fromkeys(("a", "b", "c", "d", "e", "f"), 0)
    for tenant in had:
        with contextlib.suppress(QuotaExceeded):
            while True:
                await known.start(about(f"pr_{tenant}{had[tenant]}", tenant), Box().run)
                had[tenant] += 1
    assert had == {"a": 16, "b": 16, "c": 16, "d": 8, "e": 4, "f": 2}


async def test_what_one_tenant_leaves_does_not_push_out_what_another_left() -> None:
    known = registry(over_bytes=100)
    for name, tenant, said in (("pr_m", "modest", 10), ("pr_1", "greedy", 90), ("pr_2", "greedy", 90)):
        running = await known.start(about(name, tenant), Box().run)
        running.hear("stdout", bytes(said))
        await running.kill()
    assert [info.process_id for info in known.listed(None)] == ["pr_m", "pr_1", "pr_2"]
    await (await known.start(about("pr_3", "another"), Box().run)).kill()
    assert [info.process_id for info in known.listed(None)] == ["pr_m", "pr_2", "pr_3"]


async def test_of_those_that_are_over_the_oldest_are_forgotten_and_the_last_never() -> None:
    known = registry(over=3, over_per_tenant=2)
    for number, tenant in enumerate(("a", "a", "a", "b", "b")):
        await (await known.start(about(f"pr_{number}", tenant), Box().run)).kill()
    assert [info.process_id for info in known.listed(None)] == ["pr_2", "pr_3", "pr_4"]
    tiny = registry(over_bytes=1)
    for name in ("pr_a", "pr_b"):
        running = await tiny.start(about(name), Box().run)
        running.hear("stdout", b"more than one byte")
        await running.kill()
        assert [info.process_id for info in tiny.listed(None)] == [name]


async def test_ending_an_owners_processes_leaves_those_of_others() -> None:
    known, mine, yours = registry(), object(), object()
    first = await known.start(about("pr_a"), Box().run, owner=mine)
    second = await known.start(about("pr_b"), Box().run, owner=yours)
    await known.end_all(mine)
    assert (first.state, second.state) == (Status.CANCELLED, Status.RUNNING)


async def test_a_poll_waits_for_output_and_is_let_go_by_the_end() -> None:
    box = Box()
    running = await registry().start(about(), box.run)
    waiting = asyncio.ensure_future(running.poll(wait_seconds=1000))
    await asyncio.sleep(0)
    running.hear("stderr", b"told")
    assert (await waiting).stderr.data == b"told"
    waiting = asyncio.ensure_future(running.poll(stderr_offset=4, wait_seconds=1000))
    await asyncio.sleep(0)
    box.ends.set_result(ExecutionResult(Status.SUCCEEDED, exit_code=0))
    said = await waiting
    assert (said.state, said.exit_code, said.stderr.data) == (Status.SUCCEEDED, 0, b"")


async def test_a_stream_that_is_too_slow_is_told_by_the_offsets() -> None:
    box = Box()
    running = await registry().start(about(), box.run)
    running.hear("stdout", b"x" * 3_000_000)
    box.ends.set_result(ExecutionResult(Status.SUCCEEDED))
    pieces = [(offset, len(data)) async for _, offset, data in running.stream()]
    assert pieces[0][0] == 3_000_000 - 1024 * 1024
    assert all(first[0] + first[1] == second[0] for first, second in itertools.pairwise(pieces))
    assert sum(pieces[-1]) == 3_000_000


async def test_what_is_said_to_it_reaches_it_and_nothing_does_after_its_end() -> None:
    box = Box()
    running = await registry().start(about(), box.run)
    await running.send(b"abc", end=True)
    running.signal("sigint")
    running.resize(3, 4)
    assert box.sent == b"abc<end><2><3 4>"
    assert running.stdin_bytes == 3
    for wrong in ("KILL", "STOP", "", "9"):
        with pytest.raises(InvalidRequest):
            running.signal(wrong)
    await running.kill()
    with pytest.raises(InvalidRequest) as over:
        await running.send(b"late")
    assert over.value.reason == "process_ended"
    assert box.killed_by == ["cancelled"]


async def test_a_process_that_is_killed_while_its_worker_is_replaced_never_runs_again() -> None:
    first, second = Box(), Box()

    async def run(running: Running) -> ExecutionResult:
        await first.run(running)
        await second.run(running)
        return await second.ends

    journal = Journal()
    running = await registry(journal).start(about(), run)
    await running.kill()
    assert (first.killed_by, second.killed_by) == (["cancelled"], ["cancelled"])
    assert [each["type"] for each in journal.written] == ["process.started", "process.ended"]
