"""Executions as a service promises them: one name from the queue to the evidence, one run for one promise.

What was acknowledged, with `wait: false` or under an idempotency key, is in the database before anybody is told of it,
and runs after a restart if it had not begun. Somebody who waits without a key was promised nothing: his request is in
memory, and what he gets is written nowhere but in the journal and in the files of his project.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ringfence.errors import Denied, InternalError, InvalidRequest, RingfenceError, Unavailable
from ringfence.evidence.correlation import Correlation
from ringfence.interrupted import Interrupted
from ringfence.outcome import ExecutionResult, Status
from ringfence.service import exec_views, promises
from ringfence.service.admission import Admission, Caps
from ringfence.service.callers import Principal
from ringfence.service.calls import GrantShown
from ringfence.service.events import Ring, forgotten
from ringfence.service.exec_finder import LIVE, Finder, Page, Position, Question
from ringfence.service.exec_form import ExecForm, require_trusted_preload
from ringfence.service.exec_lookup import Lookup, sees, shows_everything
from ringfence.service.exec_store import ExecStore, Promised, key_digest
from ringfence.service.exec_views import View
from ringfence.service.live import Live, claim_by, too_heavy
from ringfence.service.recent import Recent
from ringfence.service.runs import Gone, ManagerFor, ManagerUnder, Runs, untold

if TYPE_CHECKING:
    from ringfence.ports import Clock, Identifiers
    from ringfence.service.standing import Standing

LONGEST_WAIT_SECONDS: Final = 300.0
"""How long somebody is kept waiting before he is told to ask again."""
_log = logging.getLogger("ringfence.service")
_FORGET_EVERY: Final = 500


class Answer(NamedTuple):
    """What a caller is told."""

    view: View
    is_finished: bool


class Stream(NamedTuple):
    """What there is to follow of an execution, and how it ended once that is known."""

    ring: Ring
    conclusion: Callable[[], Awaitable[View | RingfenceError]]


class Execs:
    """The queue of a service; of one event loop."""

    def __init__(
        self,
        manager_for: ManagerFor,
        store: ExecStore,
        finder: Finder,
        *,
        clock: Clock,
        identifiers: Identifiers,
        caps: Caps | None = None,
        drain_seconds: float = 30.0,
        longest_wait: float = LONGEST_WAIT_SECONDS,
        manager_under: ManagerUnder | None = None,
        standing: Standing | None = None,
        shows: Callable[[Principal], bool] = shows_everything,
        gone: Gone = untold,
    ) -> None:
        """Nothing runs before `start`, and nothing is opened."""
        self._gone = gone
        self._manager_for = manager_for
        self._manager_under = manager_under
        self._standing = standing
        self._watching: asyncio.Task[None] | None = None
        self._store = store
        self._finder = finder
        self._recent = Recent()
        self._lookup = Lookup(finder, store, self._recent, shows)
        self._clock = clock
        self._identifiers = identifiers
        self._admission = Admission(caps or Caps())
        self._drain_seconds = drain_seconds
        self._longest_wait = longest_wait
        self._live: dict[str, Live] = {}
        self._ended = 0
        self._is_closing = False

    async def start(self) -> int:
        """Take over what a service that is gone had promised, and run it; return how many that are.

        Raises:
            Unavailable: The database cannot be used.
        """
        if self._standing is not None and self._watching is None:
            self._watching = asyncio.create_task(self._standing.watch(self._live.values))
        recovered = await asyncio.to_thread(self._store.recover, self._clock.now_ms())
        for promised in recovered.to_run:
            try:
                who, form = promises.read_request(promised)
            except Denied as refused:
                await asyncio.to_thread(self._store.over, promised.exec_id, promises.ending_of(refused))
                continue
            except (RingfenceError, ValueError, KeyError, TypeError) as error:
                _log.error("%s was promised and cannot be read any more: %s", promised.exec_id, type(error).__name__)
                lost = InternalError("what was asked for cannot be read any more")
                await asyncio.to_thread(self._store.over, promised.exec_id, promises.ending_of(lost))
                continue
            live = self._new(who, form, promised.exec_id)
            live.promised = True
            self._go(live)
        return len(recovered.to_run)

    async def submit(
        self,
        who: Principal,
        form: ExecForm,
        *,
        key: str | None = None,
        wait: bool = True,
        shown: GrantShown | None = None,
        gone: Callable[[], Awaitable[None]] | None = None,
        again: Callable[[], None] | None = None,
    ) -> Answer:
        """Run what is asked for, and return how it ended, or where it stands when nobody wants to wait longer.

        `gone` returns when the caller has left. What has begun then goes on; what nobody was promised is withdrawn.
        `again` is called when the key stands for an execution already, whose answer or refusal is then given again.

        Raises:
            Overloaded: The line is full; nothing was promised.
            InvalidRequest: The key stands for another request.
            Unavailable: It cannot be promised, or the service is about to end.
            RingfenceError: It was refused, or failed.
        """
        if self._takes_nothing():
            raise _draining()
        require_trusted_preload(who, form)
        claim = claim_by(who, form.correlation)
        refusal = self._admission.refusal_of(claim) or too_heavy(self._live.values(), who, form)
        if key is None and wait:
            if refusal is not None:
                raise refusal
            live = self._new(who, form, self._identifiers.new("ex"), shown)
            self._go(live)
            return await self._wait(live, gone)
        live = self._new(who, form, self._identifiers.new("ex"), shown)
        try:
            kept = await asyncio.to_thread(self._promise, live, key, refusal is None)
        except BaseException:
            self._live.pop(live.exec_id, None)
            raise
        if kept is None or kept.exec_id != live.exec_id:
            del self._live[live.exec_id]
            if kept is None:
                raise refusal or InternalError("there was room, and nothing was promised")
            if again is not None:
                again()
            return await self._again(who, kept, wait=wait)
        live.promised = True
        if self._takes_nothing():  # it is kept, and whoever serves next runs it
            del self._live[live.exec_id]
            raise _draining()
        self._go(live)
        return await self._wait(live, None) if wait else Answer(live.view, is_finished=False)

    async def get(self, who: Principal, exec_id: str) -> View:
        """Return all that is known of an execution.

        Raises:
            InvalidRequest: There is none of this name that the caller may see.
        """
        live = self._live.get(exec_id)
        if live is not None and live.result is None and live.error is None and sees(who, live.who.tenant):
            return {**live.row(), **live.view}
        return await asyncio.to_thread(self._lookup.view, who, exec_id)

    async def list(self, question: Question) -> Page:
        """Return a page of executions, newest first."""
        waiting = tuple(self._under_way(question))
        return await asyncio.to_thread(self._finder.page, question, waiting)

    async def cancel(self, who: Principal, exec_id: str) -> View:
        """End an execution that waits or runs, and return how it ended; one that is over stays as it is.

        Raises:
            InvalidRequest: There is none of this name that the caller may see.
        """
        live = self._live.get(exec_id)
        if live is not None and sees(who, live.who.tenant):
            if live.task is not None and not live.finished.done():
                live.end()
                await asyncio.shield(live.finished)
            if live.error is None and (live.result is None or live.result.evidence_id is None):  # on no record
                return {**live.row(), **live.view}
        return await self.get(who, exec_id)

    async def events(self, who: Principal, exec_id: str, after: int = 0) -> Stream:
        """Return what there is to follow of an execution.

        Raises:
            InvalidRequest: There is none of this name that the caller may see.
        """
        live = self._live.get(exec_id)
        if live is not None and sees(who, live.who.tenant):

            async def conclusion(live: Live = live) -> View | RingfenceError:
                await asyncio.shield(live.finished)
                return live.view if live.error is None else live.error

            return Stream(live.ring, conclusion)
        view = await asyncio.to_thread(self._lookup.view, who, exec_id)
        known = self._recent.find(exec_id) if self._lookup.shows(who) else None
        ring = forgotten(view["status"], after) if known is None else known.ring

        async def conclude() -> View | RingfenceError:
            return exec_views.answer_of(view) if known is None or known.error is None else known.error

        return Stream(ring, conclude)

    async def artifacts(self, who: Principal, exec_id: str) -> tuple[View, ...]:
        """Return the files that an execution left, by path, size and digest.

        Raises:
            InvalidRequest: There is no such execution that the caller may see.
        """
        return tuple((await self.get(who, exec_id)).get("artifacts") or ())

    async def artifact(self, who: Principal, exec_id: str, path: str) -> bytes:
        """Return the bytes of one file that an execution left.

        Raises:
            InvalidRequest: There is none of this name that the caller may see.
        """
        return await asyncio.to_thread(self._lookup.artifact, who, exec_id, path)

    async def output(self, who: Principal, exec_id: str, stream: str) -> bytes:
        """Return what an execution wrote to `stdout` or `stderr`, as far as it was kept.

        Raises:
            InvalidRequest: There is no such execution that the caller may see, or it has not ended.
        """
        live = self._live.get(exec_id)
        if live is not None and sees(who, live.who.tenant):
            raise InvalidRequest("the execution has not ended; its events have its output", reason="unfinished")
        return await asyncio.to_thread(self._lookup.output, who, exec_id, stream)

    @contextlib.asynccontextmanager
    async def turn_for(self, who: Principal, correlation: Correlation) -> AsyncIterator[None]:
        """Wait for a turn, like an execution, for something that is carried out while its caller waits.

        Raises:
            Overloaded: The line is full.
        """
        claim = claim_by(who, correlation)
        refusal = self._admission.refusal_of(claim)
        if refusal is not None:
            raise refusal
        turn = self._admission.join(claim)
        try:
            await self._admission.wait(turn)
            yield
        finally:
            self._admission.leave(turn)

    def counts(self) -> dict[str, int]:
        """Return how many run and how many wait."""
        return {"running": self._admission.running, "waiting": self._admission.waiting}

    async def close(self) -> None:
        """Take nothing more; let what runs end, or cancel it when that takes too long; leave promises for later."""
        self._is_closing = True
        for live in self._live.values():
            live.leave_line()
        tasks = [live.task for live in self._live.values() if live.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._drain_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.to_thread(self._store.release)

    def _takes_nothing(self) -> bool:
        return self._is_closing

    # --- one execution ---

    def _new(self, who: Principal, form: ExecForm, exec_id: str, shown: GrantShown | None = None) -> Live:
        live = Live(exec_id, who, form, self._clock.now_ms(), asyncio.get_running_loop().create_future(), shown=shown)
        live.ring.status(str(Status.QUEUED))
        self._live[exec_id] = live
        return live

    def _go(self, live: Live) -> None:
        live.turn = self._admission.join(live.claim())
        live.task = asyncio.get_running_loop().create_task(self._run(live))

    async def _run(self, live: Live) -> None:
        """See one execution through; whatever happens, whoever waits for it learns of it."""
        leave_promise = False
        try:
            live.result = await self._run_in_turn(live)
        except asyncio.CancelledError as ended:
            if self._is_closing and live.status is Status.QUEUED:
                live.error, leave_promise = _draining(), live.promised
            else:
                done = ended.__cause__.result if isinstance(ended.__cause__, Interrupted) else None
                never_began = exec_views.never_began(live.exec_id, Status.CANCELLED)
                live.result = done if isinstance(done, ExecutionResult) else never_began
        except RingfenceError as error:
            live.error = error
        except Exception as error:  # noqa: BLE001 a fault of ours must not leave anybody waiting for ever
            _log.error("%s failed", live.exec_id, exc_info=error)
            live.error = InternalError("the service failed at this execution")
        began = live.status is not Status.QUEUED
        self._conclude(live, waits=leave_promise)
        if live.promised and not leave_promise:
            await self._keep_ending(live, began=began)
        self._ended += 1
        if self._ended % _FORGET_EVERY == 0:
            await self._forget_old()

    async def _run_in_turn(self, live: Live) -> ExecutionResult:
        turn = live.turn
        if turn is None:
            raise InternalError("an execution was started that is not in line")
        try:
            await self._admission.wait(turn)
            live.status = Status.RUNNING
            live.ring.status(str(Status.RUNNING))
            manager = await self._manager(live)
            # how many run at once is how many guests there are: the next one need not wait for this one's record
            with self._gone(live.exec_id, partial(self._admission.leave, turn)):
                return await manager.execute(live.form.request, on_output=live.ring.output, exec_id=live.exec_id)
        finally:
            self._admission.leave(turn)

    async def _manager(self, live: Live) -> Runs:
        if self._standing is not None:
            await self._standing.require(live.who, live.exec_id)
        if live.shown is None:
            return self._manager_for(live.who, live.form)
        if self._manager_under is None:
            raise InternalError("this queue takes no grants")
        return await self._manager_under(live.who, live.shown, live.form)

    def _conclude(self, live: Live, *, waits: bool) -> None:
        """Tell whoever follows it how it ended; one that `waits` for the service to start again has not ended."""
        if not waits:
            live.status = exec_views.status_of(live.error) if live.result is None else live.result.status
            live.ring.status(str(live.status))
        live.ring.end()
        self._recent.keep(
            live.exec_id, live.who.tenant, live.ring, live.result, live.error, live.form.project_id, waits=waits
        )
        del self._live[live.exec_id]
        live.finished.set_result(None)

    async def _wait(self, live: Live, gone: Callable[[], Awaitable[None]] | None) -> Answer:
        leaving = None
        if live.status is Status.QUEUED and gone is not None and live.turn is not None and live.turn.began is None:
            # who was promised nothing, and leaves before he is served, never is
            leaving = asyncio.ensure_future(gone())
            leaving.add_done_callback(live.was_left)
        try:
            if not live.finished.done():
                await asyncio.wait((live.finished,), timeout=self._longest_wait)
        finally:
            if leaving is not None:
                leaving.cancel()
        if live.error is not None:
            raise live.error
        return Answer(live.view, is_finished=live.result is not None)

    # --- promises ---

    def _promise(self, live: Live, key: str | None, room: bool) -> Promised | None:
        promised = Promised(
            live.exec_id,
            live.who.tenant,
            None if key is None else key_digest(key),
            live.form.digest(),
            live.created_ms,
            promises.write_request(live.who, live.form),
        )
        return self._store.promise(promised, room=room)

    async def _again(self, who: Principal, kept: Promised, *, wait: bool) -> Answer:
        """Answer a request whose key stands for an execution already as it was answered, or will be."""
        live = self._live.get(kept.exec_id)
        if live is not None:
            if not wait:
                return Answer(live.view, is_finished=False)
            return await self._wait(live, None)
        recent = self._recent.find(kept.exec_id)
        error = promises.error_in(kept) if recent is None else recent.error
        if error is not None and wait:
            raise error
        view = await asyncio.to_thread(self._lookup.view, who, kept.exec_id)
        return Answer(exec_views.answer_of(view), is_finished=view["status"] not in LIVE)

    async def _keep_ending(self, live: Live, *, began: bool) -> None:
        """Forget the request; how it ended is in the journal, unless it never got that far."""
        ending = None
        if live.error is not None:
            ending = promises.ending_of(live.error)
        elif not began:
            ending = promises.cancelled_ending()
        try:
            await asyncio.to_thread(self._store.over, live.exec_id, ending)
        except RingfenceError as error:
            # the next to start finds in the journal that it was begun, and does not run it again
            _log.warning("what was asked for as %s could not be forgotten: %s", live.exec_id, error.reason)

    async def _forget_old(self) -> None:
        try:
            await asyncio.to_thread(self._store.forget_old, self._clock.now_ms())
        except RingfenceError as error:
            _log.warning("old idempotency keys could not be forgotten: %s", error.reason)

    # --- looking ---

    def _under_way(self, question: Question) -> Iterator[tuple[Position, View]]:
        for live in self._live.values():
            if question.status is not None and question.status != str(live.status):
                continue
            if question.fits({**live.form.correlation.members(), "tenant": live.who.tenant}):
                yield Position(live.created_ms, live.exec_id), live.line()


def _draining() -> Unavailable:
    return Unavailable("the service is about to end; ask again", reason="draining")
