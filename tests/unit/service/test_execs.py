"""Executions as the service promises them, over the real pipeline, journal and database; only the box is scripted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ringfence import wiring
from ringfence.authority.caller import Caller
from ringfence.authority.policy import BUILT_IN
from ringfence.clock import SystemClock
from ringfence.database.port import Database
from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import Denied, ExecutionFailed, InvalidRequest, Overloaded, RingfenceError, Unavailable
from ringfence.evidence.correlation import Correlation
from ringfence.evidence.records import Members
from ringfence.facade import ExecutionRequest
from ringfence.identifiers import TimeOrdered
from ringfence.journal.journal import Journal
from ringfence.operation import CodeRun, parse_language
from ringfence.operation.form import Operation
from ringfence.outcome import ExecutionResult, OnOutput, Outcome, Status
from ringfence.ports import ExecCtx
from ringfence.service.admission import Caps
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_finder import Finder, Question, read_cursor, write_cursor
from ringfence.service.exec_form import ExecForm, read_exec
from ringfence.service.exec_store import KEPT_MS, ExecStore, Promised, key_digest
from ringfence.service.execs import Execs
from ringfence.stores.guests import Guests
from ringfence.testing import AS_A_BOX_LOOKS, orchestrator_over

ANNA = Principal(Caller("acme", "anna"), Access.AGENT, "k1")
BERT = Principal(Caller("other", "bert"), Access.AGENT, "k2")
ADMIN = Principal(Caller("local", "owner"), Access.ADMIN, "k0", everywhere=True)


def form(code: str = "print(1)", **more: Any) -> ExecForm:
    return read_exec({"project_id": "p", "exec": {"kind": "python", "code": code}, **more})


@dataclass
class Box:
    """Answers at once with the code as output; code that begins with `wait` is held until it is let go."""

    started: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    most_at_once: int = 0
    at_once: int = 0

    def capability_domain(self) -> str:
        return "code"

    async def execute(self, ctx: ExecCtx, operation: CodeRun) -> ExecutionResult:
        await ctx.begun()
        self.started.append(operation.code)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if operation.code.startswith("wait"):
                await self.gate(operation.code).wait()
            if operation.code == "break":
                raise OSError(errno.EMFILE, "Too many open files")
            output = operation.code.encode()
            if ctx.on_output is not None:
                ctx.on_output("stdout", output)
            return ExecutionResult(
                Status.SUCCEEDED, 0, output, stdout_bytes=len(output), exec_id=ctx.exec_id, isolation=AS_A_BOX_LOOKS,
                sandbox_id="scripted", elapsed_ms=1.25,
            )  # fmt: skip
        finally:
            self.at_once -= 1

    def gate(self, code: str) -> asyncio.Event:
        return self.gates.setdefault(code, asyncio.Event())


@dataclass
class House:
    """A queue over the real pipeline, as a process would have it."""

    execs: Execs
    box: Box
    store: ExecStore
    database: Database
    journal: Journal
    before_ends: list[Callable[[], Awaitable[Any]]]
    """What the record of an end waits for."""


@contextlib.asynccontextmanager
async def house(home: Path, *, caps: Caps | None = None, dies: bool = False, **more: Any) -> AsyncIterator[House]:
    database, box, clock = SqliteDatabase.in_home(home), Box(), SystemClock()
    journal = wiring.make_journal(wiring.Settings(home), SqliteDatabase.in_home(home), clock)
    before_ends: list[Callable[[], Awaitable[Any]]] = []

    async def keep(begun: Members, ended: Members, operation: Operation, outcome: Outcome) -> Outcome:
        while before_ends:
            await before_ends.pop()()
        return outcome

    guests = Guests(keep)
    pipeline = orchestrator_over(box, evidence=journal, keep=guests)
    authority = wiring.authority_over(lambda: BUILT_IN, clock)

    @dataclass
    class Manager:
        who: Principal
        project_id: str | None
        correlation: Correlation

        async def execute(
            self, request: ExecutionRequest, *, on_output: OnOutput | None = None, exec_id: str | None = None
        ) -> ExecutionResult:
            code = request.code
            if code == "refuse":
                raise Denied("not for you", reason="not_granted")
            operation = CodeRun(parse_language(request.language), str(code), session_id=self.project_id)
            profile = authority.profile(operation, call_id="call_1", caller=self.who.caller)
            return await pipeline.run(operation, profile, on_output, correlation=self.correlation, exec_id=exec_id)

    store = ExecStore(database)
    execs = Execs(
        lambda who, form: Manager(who, form.project_id, form.correlation),
        store, Finder(database, home), clock=clock, identifiers=TimeOrdered(), caps=caps or Caps(instance=2),
        drain_seconds=5, gone=guests.telling, **more,
    )  # fmt: skip
    try:
        yield House(execs, box, store, database, journal, before_ends)
    finally:
        if not dies:
            await execs.close()
            await asyncio.to_thread(journal.close)
        await asyncio.to_thread(database.close)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  what is waited for is inside what is tested
            await asyncio.sleep(0.001)


# --- running and looking ---


async def test_what_is_asked_for_runs_and_is_found_again_as_it_was_told(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        answer = await served.execs.submit(ANNA, form())
        assert answer.is_finished
        assert answer.view["status"] == "succeeded"
        assert answer.view["stdout"] == "print(1)"
        again = await served.execs.get(ANNA, answer.view["exec_id"])
        assert {**again, **answer.view} == again | {"stdout": "print(1)", "out": answer.view["out"]}
        assert again["project_id"] == "p"


def test_capabilities_of_a_request_are_refused_unread() -> None:
    # a long list of them is compared each with each, which would hold up everybody else
    with pytest.raises(InvalidRequest) as refused:
        form(policy_overrides={"capabilities": ["none that there is"]})
    assert refused.value.reason == "not_in_this_version"


async def test_ids_are_unique_and_sort_by_age(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        ids = [(await served.execs.submit(ANNA, form(f"print({n})"))).view["exec_id"] for n in range(4)]
        assert len(set(ids)) == 4
        assert [one[:15] for one in ids] == sorted(one[:15] for one in ids)


async def test_one_more_than_may_run_waits_and_is_seen_waiting(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        first = await served.execs.submit(ANNA, form("wait 1"), wait=False)
        second = await served.execs.submit(ANNA, form("print(2)"), wait=False)
        await until(lambda: served.box.started == ["wait 1"])
        states = [(await served.execs.get(ANNA, each.view["exec_id"]))["status"] for each in (first, second)]
        assert states == ["running", "queued"]
        assert served.execs.counts() == {"running": 1, "waiting": 1}
        served.box.gate("wait 1").set()
        done = await served.execs.submit(ANNA, form("print(3)"))
        assert done.is_finished
        assert served.box.most_at_once == 1
        assert served.box.started == ["wait 1", "print(2)", "print(3)"]


async def test_the_next_one_begins_while_the_end_of_the_last_is_written(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        on_disk = asyncio.Event()
        served.before_ends.append(on_disk.wait)
        first = asyncio.create_task(served.execs.submit(ANNA, form("print(1)")))
        second = await served.execs.submit(ANNA, form("wait 2"), wait=False)
        await until(lambda: served.box.started == ["print(1)", "wait 2"])
        assert not first.done()
        assert served.execs.counts() == {"running": 1, "waiting": 0}
        on_disk.set()
        assert (await first).is_finished
        assert served.execs.counts() == {"running": 1, "waiting": 0}, "a place is given back once"
        following = await served.execs.events(ANNA, second.view["exec_id"])
        served.box.gate("wait 2").set()
        told = await following.conclusion()
        assert not isinstance(told, RingfenceError)
        assert told["status"] == "succeeded"
        assert served.box.most_at_once == 1


async def test_a_full_line_refuses_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1, waiting=1)) as served:
        await served.execs.submit(ANNA, form("wait 1"), wait=False)
        await served.execs.submit(ANNA, form("print(2)"), wait=False)
        for options in ({"key": "k"}, {"wait": False}, {}):
            with pytest.raises(Overloaded) as refused:
                await served.execs.submit(ANNA, form("print(3)"), **options)
            assert refused.value.details["scope"] == "instance"
        assert rows(served.database) == 2
        served.box.gate("wait 1").set()


async def test_another_tenants_execution_is_not_there(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        running = (await served.execs.submit(ANNA, form("wait 1"), wait=False)).view["exec_id"]
        over = (await served.execs.submit(ANNA, form())).view["exec_id"]
        await until(lambda: "wait 1" in served.box.started)
        unknown = "ex_" + "0" * 32
        told = set()
        for exec_id in (running, over, unknown, "nonsense", "ev_" + "0" * 32, "../../x", "ex_\0"):
            for ask in (
                served.execs.get(BERT, exec_id),
                served.execs.cancel(BERT, exec_id),
                served.execs.events(BERT, exec_id),
                served.execs.artifacts(BERT, exec_id),
                served.execs.artifact(BERT, exec_id, "a"),
                served.execs.output(BERT, exec_id, "stdout"),
            ):
                with pytest.raises(InvalidRequest) as refused:
                    await ask
                told.add((str(refused.value), refused.value.reason, str(refused.value.details)))
        assert len(told) == 1
        assert (await served.execs.list(Question("other", {}))).items == ()
        assert (await served.execs.get(ADMIN, running))["status"] == "running"
        served.box.gate("wait 1").set()


async def test_a_refusal_is_raised_to_who_waits_and_shown_to_who_does_not(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        with pytest.raises(Denied):
            await served.execs.submit(ANNA, form("refuse"))
        asked = (await served.execs.submit(ANNA, form("refuse"), wait=False)).view["exec_id"]
        await until(lambda: not served.execs._live)
        view = await served.execs.get(ANNA, asked)
        assert (view["status"], view["reason"]) == ("denied", "not_granted")


# --- keys ---


async def test_a_key_stands_for_one_execution(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        told: list[str] = []
        first = await served.execs.submit(ANNA, form(), key="k", again=lambda: told.append("first"))
        again = await served.execs.submit(ANNA, form(), key="k", again=lambda: told.append("again"))
        assert told == ["again"]
        assert again.view["exec_id"] == first.view["exec_id"]
        assert served.box.started == ["print(1)"]
        assert again.view.keys() == first.view.keys()


async def test_both_who_ask_at_once_under_one_key_get_the_same(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        told: list[None] = []
        submit = partial(served.execs.submit, ANNA, form("wait 1"), key="k", again=lambda: told.append(None))
        asked = [asyncio.ensure_future(submit()) for _ in range(8)]
        await until(lambda: served.box.started)
        served.box.gate("wait 1").set()
        answers = await asyncio.gather(*asked)
        assert len({answer.view["exec_id"] for answer in answers}) == 1
        assert len(told) == 7
        assert served.box.started == ["wait 1"]


async def test_a_key_with_another_body_is_a_conflict_and_runs_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        await served.execs.submit(ANNA, form(), key="k")
        with pytest.raises(InvalidRequest) as refused:
            await served.execs.submit(ANNA, form("print(2)"), key="k")
        assert refused.value.answer.http_status == 409
        assert served.box.started == ["print(1)"]


async def test_whether_somebody_waits_is_no_part_of_the_request(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        body = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}}
        first = await served.execs.submit(ANNA, read_exec({**body, "wait": True}), key="k")
        again = await served.execs.submit(ANNA, read_exec({**body, "wait": False}), key="k", wait=False)
        assert again.view["exec_id"] == first.view["exec_id"]


async def test_keys_of_two_tenants_do_not_know_each_other(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        first = await served.execs.submit(ANNA, form(), key="k")
        other = await served.execs.submit(BERT, form("print(2)"), key="k")
        assert other.view["exec_id"] != first.view["exec_id"]


async def test_a_refusal_under_a_key_is_the_same_refusal_again(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        told, again = [], []
        for _ in range(2):
            with pytest.raises(RingfenceError) as refused:
                await served.execs.submit(ANNA, form("refuse"), key="k", again=lambda: again.append(True))
            told.append((type(refused.value), str(refused.value), refused.value.reason))
        assert (told[0], again) == (told[1], [True])
    async with house(tmp_path) as served:
        with pytest.raises(Denied, match="not for you"):
            await served.execs.submit(ANNA, form("refuse"), key="k")


async def test_what_was_asked_for_is_forgotten_when_it_is_over(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        await served.execs.submit(ANNA, form("marker-7312"), key="k")
        await served.execs.submit(ANNA, form("marker-7312"), wait=False)
        await until(lambda: requests(served.database) == [None])
    with contextlib.closing(SqliteDatabase.in_home(tmp_path)) as database, database.reading() as cursor:
        kept = json.dumps(cursor.execute("SELECT * FROM service_exec").fetchall())
    assert "marker-7312" not in kept


async def test_who_waits_without_a_key_writes_no_row(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        await served.execs.submit(ANNA, form())
        assert rows(served.database) == 0


def test_a_key_is_forgotten_after_a_day(tmp_path: Path) -> None:
    store = ExecStore(SqliteDatabase.in_home(tmp_path))
    old = Promised("ex_1", "acme", key_digest("k"), "d1", 1000, "{}")
    assert store.promise(old, room=True) == old
    store.over("ex_1", None)
    same = replace(old, exec_id="ex_2", created_ms=1000 + KEPT_MS - 1)
    found = store.promise(same, room=True)
    assert found is not None
    assert found.exec_id == "ex_1"
    later = replace(old, exec_id="ex_3", digest="d2", created_ms=1000 + KEPT_MS)
    assert store.promise(later, room=True) == later
    store.close()


# --- a restart ---


async def test_what_was_promised_and_had_not_begun_runs_after_a_restart_under_its_name(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        await served.execs.submit(ANNA, form("wait 1"), wait=False)
        promised = await served.execs.submit(ANNA, form("print(2)", task_ref="t9"), key="k", wait=False)
        await until(lambda: served.box.started)
        closing = asyncio.ensure_future(served.execs.close())
        await asyncio.sleep(0.01)
        served.box.gate("wait 1").set()
        await closing
        assert served.box.started == ["wait 1"]
    async with house(tmp_path) as served:
        assert await served.execs.start() == 1
        answer = await served.execs.submit(ANNA, form("print(2)", task_ref="t9"), key="k")
        assert answer.view["exec_id"] == promised.view["exec_id"]
        assert answer.view["stdout"] == "print(2)" or answer.view["status"] == "succeeded"
        assert served.box.started == ["print(2)"]
        found = await served.execs.get(ANNA, promised.view["exec_id"])
        assert found["task_id"] == "t9"
        assert await served.execs.start() == 0


async def test_what_had_begun_is_never_begun_again(tmp_path: Path) -> None:
    async with house(tmp_path, dies=True) as served:
        begun = (await served.execs.submit(ANNA, form("wait 1"), key="k", wait=False)).view["exec_id"]
        await until(lambda: served.box.started)
        # as if the process had been killed: the row is there, and its owner is nobody any more
        with served.database.transaction() as cursor:
            cursor.execute("UPDATE service_exec SET owner = ''")
        (task,) = (live.task for live in served.execs._live.values())
        assert task is not None
        async with house(tmp_path, dies=True) as after:
            assert await after.execs.start() == 0
            view = (await after.execs.submit(ANNA, form("wait 1"), key="k", wait=False)).view
            assert view["exec_id"] == begun
            assert after.box.started == []
        task.cancel()
        await asyncio.wait([task])


async def test_a_service_that_lives_keeps_its_promises_itself(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        await served.execs.submit(ANNA, form("wait 1"), wait=False)
        await served.execs.submit(ANNA, form("print(2)"), wait=False)
        assert served.store.recover(0).to_run == ()
        served.box.gate("wait 1").set()


async def test_a_service_that_ends_takes_nothing_more(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        await served.execs.close()
        with pytest.raises(Unavailable) as refused:
            await served.execs.submit(ANNA, form())
        assert refused.value.reason == "draining"
        assert refused.value.retryable


# --- cancelling and leaving ---


async def test_cancelling_ends_what_waits_and_what_runs_and_changes_nothing_twice(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        running = (await served.execs.submit(ANNA, form("wait 1"), wait=False)).view["exec_id"]
        waiting = (await served.execs.submit(ANNA, form("print(2)"), key="k", wait=False)).view["exec_id"]
        await until(lambda: served.box.started)
        for exec_id in (waiting, running):
            assert (await served.execs.cancel(ANNA, exec_id))["status"] == "cancelled"
            assert (await served.execs.cancel(ANNA, exec_id))["status"] == "cancelled"
            assert (await served.execs.get(ANNA, exec_id))["status"] == "cancelled"
        assert served.box.started == ["wait 1"]
        again = await served.execs.submit(ANNA, form("print(2)"), key="k")
        assert again.view["status"] == "cancelled"
        done = (await served.execs.submit(ANNA, form("print(3)"))).view["exec_id"]
        assert (await served.execs.cancel(ANNA, done))["status"] == "succeeded"


async def test_who_leaves_while_he_waits_is_not_served_and_who_is_served_goes_on(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        leaves = asyncio.Event()

        async def gone() -> None:
            await leaves.wait()

        first = asyncio.ensure_future(served.execs.submit(ANNA, form("wait 1"), gone=gone))
        second = asyncio.ensure_future(served.execs.submit(ANNA, form("print(2)"), gone=gone))
        await until(lambda: served.box.started)
        leaves.set()
        assert (await second).view["status"] == "cancelled"
        served.box.gate("wait 1").set()
        assert (await first).view["status"] == "succeeded"
        assert served.box.started == ["wait 1"]


async def test_nobody_is_kept_waiting_for_ever(tmp_path: Path) -> None:
    async with house(tmp_path, longest_wait=0.01) as served:
        answer = await served.execs.submit(ANNA, form("wait 1"))
        assert not answer.is_finished
        assert answer.view["status"] in ("queued", "running")
        served.box.gate("wait 1").set()


async def test_what_gets_its_turn_in_the_moment_in_which_the_service_ends_runs_to_its_end(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        first = (await served.execs.submit(ANNA, form("wait 1"), wait=False)).view["exec_id"]
        await until(lambda: "wait 1" in served.box.started)
        second = (await served.execs.submit(ANNA, form("print(2)"), wait=False)).view["exec_id"]
        turn, live = served.execs._live[first].turn, served.execs._live[second]
        assert turn is not None
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(served.execs.close())
        served.execs._admission.leave(turn)
        served.box.gate("wait 1").set()
        await ending
        assert live.status is Status.SUCCEEDED


# --- lists ---


async def test_lists_show_what_waits_runs_and_is_over_newest_first_in_pages(tmp_path: Path) -> None:
    async with house(tmp_path, caps=Caps(instance=1)) as served:
        over = [(await served.execs.submit(ANNA, form(f"print({n})"))).view["exec_id"] for n in range(5)]
        running = (await served.execs.submit(ANNA, form("wait 1"), wait=False)).view["exec_id"]
        await until(lambda: "wait 1" in served.box.started)
        await asyncio.sleep(0.002)
        waiting = (await served.execs.submit(ANNA, form("wait 2"), wait=False)).view["exec_id"]
        seen: list[str] = []
        question = Question("acme", {}, limit=2)
        while True:
            page = await served.execs.list(question)
            seen += [item["exec_id"] for item in page.items]
            if page.next is None:
                break
            question = replace(question, before=read_cursor(write_cursor(page.next)))
        assert seen == [waiting, running, *reversed(over)]
        for status, expected in (("queued", [waiting]), ("running", [running]), ("succeeded", list(reversed(over)))):
            page = await served.execs.list(Question("acme", {}, status))
            assert [item["exec_id"] for item in page.items] == expected
        for code in ("wait 1", "wait 2"):
            served.box.gate(code).set()


async def test_lists_filter_by_what_the_caller_calls_it(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        first = (await served.execs.submit(ANNA, form(task_ref="t1"))).view["exec_id"]
        await served.execs.submit(ANNA, form(task_ref={"task_id": "t2", "user_id": "u"}))
        page = await served.execs.list(Question("acme", {"task_id": "t1"}))
        assert [item["exec_id"] for item in page.items] == [first]
        assert (await served.execs.list(Question("acme", {"user_id": "u"}))).items[0]["task_id"] == "t2"
        assert (await served.execs.list(Question("acme", {"project_id": "q"}))).items == ()


@pytest.mark.parametrize(
    "text", ["", "x", "é", "W10", "WzEsMl0", "WyJhIiwiYiJd", "WzEsImEiLDJd", "W" * 300, "eyJhIjoxfQ", "Wy0xLCJhIl0"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_cursor(text)
    assert refused.value.reason == "invalid_range"


async def test_what_breaks_under_an_execution_is_told_as_it_is_on_record(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        with pytest.raises(ExecutionFailed) as failed:
            await served.execs.submit(ANNA, form("break"))
        (line,) = (await served.execs.list(Question("acme", {}))).items
        assert (line["status"], line["error_code"], line["reason"]) == ("error", failed.value.code, failed.value.reason)
        assert line["evidence_id"] == failed.value.details["evidence_id"]


# --- events ---


async def test_events_tell_states_and_output_and_are_there_again_from_any_number(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        asked = (await served.execs.submit(ANNA, form("wait 1"), wait=False)).view["exec_id"]
        stream = await served.execs.events(ANNA, asked)
        await until(lambda: served.box.started)
        served.box.gate("wait 1").set()
        concluded = await stream.conclusion()
        events = stream.ring.after(0)
        assert [(event.number, event.name) for event in events] == [
            (1, "status"), (2, "status"), (3, "output"), (4, "status"),
        ]  # fmt: skip
        assert json.loads(events[2].data)["text"] == "wait 1"
        assert isinstance(concluded, dict)
        assert concluded["status"] == "succeeded"
        again = await served.execs.events(ANNA, asked)
        assert [event.number for event in again.ring.after(2)] == [3, 4]


async def test_events_of_what_ended_long_ago_say_that_they_are_lost(tmp_path: Path) -> None:
    async with house(tmp_path) as served:
        asked = (await served.execs.submit(ANNA, form())).view["exec_id"]
    async with house(tmp_path) as served:
        stream = await served.execs.events(ANNA, asked, 7)
        events = stream.ring.after(7)
        assert [event.name for event in events] == ["lost", "status"]
        assert [event.number for event in events] == [8, 9]
        concluded = await stream.conclusion()
        assert isinstance(concluded, dict)
        assert concluded["status"] == "succeeded"


def rows(database: Database) -> int:
    with database.reading() as cursor:
        (count,) = cursor.execute("SELECT count(*) FROM service_exec").fetchone()
    return int(count)


def requests(database: Database) -> list[str | None]:
    with database.reading() as cursor:
        return [request for (request,) in cursor.execute("SELECT request FROM service_exec").fetchall()]
