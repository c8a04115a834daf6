"""The pool hands a worker out once, gives every caller a worker or an error, and loses nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ringfence.errors import InternalError, IsolationUnavailable, Unavailable
from ringfence.isolation.pool.decide import PoolPolicy
from ringfence.isolation.pool.keeper import Keeper
from ringfence.ports import Worker, WorkerSpec
from ringfence.testing import FrozenClock, ScriptedBackend, ScriptedWorker

SPEC = WorkerSpec()
NO_RESERVE = PoolPolicy(min_idle=0, max_idle=0)


@contextmanager
def pool(backend: ScriptedBackend, policy: PoolPolicy = PoolPolicy(), **options: object) -> Iterator[Keeper]:  # noqa: B008
    keeper = Keeper(backend, policy, default=SPEC, **options)  # type: ignore[arg-type]
    try:
        yield keeper
    finally:
        keeper.close()
        assert backend.closed
        # whatever a test did: closing leaves no worker behind and buries none twice
        assert [worker.sandbox_id for worker in backend.started if worker.discarded != 1] == []


def waiting_at(gate: threading.Event) -> Callable[[WorkerSpec], None]:
    def wait(_: WorkerSpec) -> None:
        gate.wait()

    return wait


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until other threads have made `condition` true; the timeout of the test is the only clock."""
    while not condition():  # noqa: ASYNC110  what is waited for happens in other threads
        await asyncio.sleep(0.001)


async def test_no_worker_is_ever_handed_out_twice() -> None:
    backend = ScriptedBackend()
    with pool(backend) as keeper:
        seen: list[Worker] = []

        async def caller() -> None:
            for _ in range(20):
                worker = await keeper.lease(SPEC)
                seen.append(worker)
                await asyncio.sleep(0)
                keeper.release(worker)

        await asyncio.gather(*(caller() for _ in range(16)))
        assert len(seen) == len({id(worker) for worker in seen}) == 320


def test_many_threads_with_loops_of_their_own_share_one_pool() -> None:
    backend = ScriptedBackend()
    seen: list[Worker] = []
    failures: list[BaseException] = []
    with pool(backend) as keeper:

        async def calls() -> None:
            for _ in range(15):
                worker = await keeper.lease(SPEC)
                seen.append(worker)
                keeper.release(worker)

        def thread() -> None:
            try:
                asyncio.run(calls())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=thread) for _ in range(12)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert failures == []
    assert len({id(worker) for worker in seen}) == len(seen) == 180


async def test_a_worker_that_is_given_back_is_destroyed() -> None:
    backend = ScriptedBackend()
    with pool(backend, NO_RESERVE) as keeper:
        worker = await keeper.lease(SPEC)
        assert isinstance(worker, ScriptedWorker)
        assert keeper.status() == {"idle": 0, "starting": 0, "busy": 1, "waiting": 0}
        keeper.release(worker)
        await eventually(lambda: worker.discarded == 1)
        assert keeper.status()["busy"] == 0


async def test_the_default_shelf_is_filled_before_anybody_asks() -> None:
    backend = ScriptedBackend()
    with pool(backend, PoolPolicy(min_idle=3)) as keeper:
        await eventually(lambda: keeper.status()["idle"] == 3)
        assert len(keeper.parked()) == 3


async def test_the_bound_on_running_workers_holds_and_nobody_starves() -> None:
    backend = ScriptedBackend()
    with pool(backend, PoolPolicy(min_idle=0, max_idle=0, max_leased=3)) as keeper:
        most = 0

        async def caller() -> None:
            nonlocal most
            worker = await keeper.lease(SPEC)
            most = max(most, keeper.status()["busy"])
            await asyncio.sleep(0.001)
            keeper.release(worker)

        await asyncio.gather(*(caller() for _ in range(40)))
        assert most <= 3


async def test_a_refusal_reaches_the_caller_and_the_pool_recovers() -> None:
    broken = True

    def refuse(_: WorkerSpec) -> None:
        if broken:
            raise IsolationUnavailable("no namespaces here")

    with pool(ScriptedBackend(on_start=refuse)) as keeper:
        with pytest.raises(IsolationUnavailable, match="no namespaces here"):
            await keeper.lease(SPEC)
        broken = False
        keeper.release(await keeper.lease(SPEC))


async def test_an_unexpected_failure_is_tried_again_before_it_is_reported() -> None:
    failures = iter([OSError("first"), OSError("second")])

    def stumble(_: WorkerSpec) -> None:
        for failure in failures:
            raise failure

    backend = ScriptedBackend(on_start=stumble)
    with pool(backend, NO_RESERVE) as keeper:
        keeper.release(await keeper.lease(SPEC))
    assert backend.attempts == 3


async def test_a_failure_that_stays_becomes_an_error_for_everybody_who_waits() -> None:
    def fail(_: WorkerSpec) -> None:
        raise OSError("broken for good")

    with pool(ScriptedBackend(on_start=fail), NO_RESERVE) as keeper:
        answers = await asyncio.gather(*(keeper.lease(SPEC) for _ in range(5)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [IsolationUnavailable] * 5
        assert all("broken for good" in str(answer) for answer in answers)
        assert keeper.status() == {"idle": 0, "starting": 0, "busy": 0, "waiting": 0}


async def test_a_cancelled_caller_costs_nobody_a_worker() -> None:
    gate = threading.Event()
    backend = ScriptedBackend(on_start=waiting_at(gate))
    with pool(backend, NO_RESERVE) as keeper:
        callers = [asyncio.ensure_future(keeper.lease(SPEC)) for _ in range(6)]
        await eventually(lambda: keeper.status()["waiting"] == 6)
        for caller in callers[:3]:
            caller.cancel()
        gate.set()
        workers = await asyncio.gather(*callers[3:])
        assert len({id(worker) for worker in workers}) == 3
        await asyncio.gather(*callers[:3], return_exceptions=True)
        assert all(caller.cancelled() for caller in callers[:3])
        for worker in workers:
            keeper.release(worker)
        await eventually(lambda: keeper.status()["busy"] == 0)


async def test_what_comes_meanwhile_comes_while_a_worker_is_started() -> None:
    started, gate = threading.Event(), threading.Event()

    def start(_: WorkerSpec) -> None:
        started.set()
        gate.wait()

    async def meanwhile() -> None:
        await eventually(started.is_set)
        gate.set()

    backend = ScriptedBackend(on_start=start)
    with pool(backend, NO_RESERVE) as keeper:
        keeper.release(await keeper.lease(SPEC, meanwhile=meanwhile))


async def test_a_parked_worker_waits_for_nothing() -> None:
    async def meanwhile() -> None:
        pytest.fail("whoever has a worker awaits it himself")

    backend = ScriptedBackend()
    with pool(backend) as keeper:
        await eventually(lambda: keeper.is_ready(SPEC))
        keeper.release(await keeper.lease(SPEC, meanwhile=meanwhile))


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("error", [Unavailable("the disk is full"), asyncio.CancelledError()])
async def test_where_what_comes_meanwhile_fails_nobody_gets_the_worker(
    delivered: bool,
    error: BaseException,
) -> None:
    gate = threading.Event()
    backend = ScriptedBackend(on_start=waiting_at(gate))
    with pool(backend, NO_RESERVE) as keeper:

        async def meanwhile() -> None:
            if delivered:
                gate.set()
                await eventually(lambda: keeper.status()["busy"] == 1)
            raise error

        with pytest.raises(type(error)):
            await keeper.lease(SPEC, meanwhile=meanwhile)
        gate.set()
        # one that was not delivered is parked for whoever comes next
        parked = 0 if delivered else 1
        left = {"idle": parked, "starting": 0, "busy": 0, "waiting": 0}
        await eventually(lambda: keeper.status() == left and len(backend.alive()) == parked)


async def test_a_worker_that_arrives_for_a_caller_just_cancelled_is_taken_back() -> None:
    backend = ScriptedBackend()
    with pool(backend, NO_RESERVE) as keeper:
        for _ in range(200):
            caller = asyncio.ensure_future(keeper.lease(SPEC))
            await eventually(lambda: any(not worker.discarded for worker in backend.started[-1:]))
            caller.cancel()  # its worker exists and may or may not have been delivered
            (answer,) = await asyncio.gather(caller, return_exceptions=True)
            if isinstance(answer, ScriptedWorker):
                keeper.release(answer)
        await eventually(lambda: keeper.status()["busy"] == 0 and not backend.alive())


async def test_closing_gives_those_who_wait_an_error_also_beside_cancelled_ones() -> None:
    gate = threading.Event()
    backend = ScriptedBackend(on_start=waiting_at(gate))
    with pool(backend, NO_RESERVE) as keeper:
        callers = [asyncio.ensure_future(keeper.lease(SPEC)) for _ in range(4)]
        await eventually(lambda: keeper.status()["waiting"] == 4)
        callers[0].cancel()
        await asyncio.gather(callers[0], return_exceptions=True)
        closing = asyncio.ensure_future(asyncio.to_thread(keeper.close))
        answers = await asyncio.gather(*callers[1:], return_exceptions=True)
        assert [type(answer) for answer in answers] == [InternalError] * 3
        gate.set()
        await closing
        with pytest.raises(InternalError, match="closed"):
            await keeper.lease(SPEC)


async def test_a_run_that_outlasts_the_pool_still_has_its_worker_buried() -> None:
    backend = ScriptedBackend()
    with pool(backend, NO_RESERVE) as keeper:
        worker = await keeper.lease(SPEC)
        await asyncio.to_thread(keeper.close)
        assert isinstance(worker, ScriptedWorker)
        assert worker.discarded == 0
        keeper.release(worker)
        assert worker.discarded == 1


async def test_invalidating_throws_away_what_is_parked_and_what_is_being_started() -> None:
    gate = threading.Event()
    gate.set()
    backend = ScriptedBackend(on_start=waiting_at(gate))
    session = WorkerSpec(session_id="s")
    with pool(backend, PoolPolicy(min_idle=0), starters=1) as keeper:
        keeper.release(await keeper.lease(session))
        await eventually(lambda: keeper.status()["idle"] == 1)
        gate.clear()
        first = await keeper.lease(session)
        keeper.release(first)
        await eventually(lambda: keeper.status()["starting"] == 1)
        begun = len(backend.started)
        keeper.invalidate(session)
        gate.set()
        worker = await keeper.lease(session)
        assert isinstance(worker, ScriptedWorker)
        # the one that was being built over the old files is not the one handed out
        assert backend.started.index(worker) > begun
        keeper.release(worker)


async def test_the_dead_do_not_pile_up_while_a_crowd_keeps_waiting() -> None:
    most = served = 0

    def while_others_wait(_: WorkerSpec) -> None:
        while keeper.status()["waiting"] < 2 and served < 700:
            time.sleep(0)

    backend = ScriptedBackend(on_start=while_others_wait)
    with pool(backend, NO_RESERVE, starters=1) as keeper:

        async def caller() -> None:
            nonlocal most, served
            for _ in range(100):
                worker = await keeper.lease(SPEC)
                served += 1
                most = max(most, len(backend.alive()))
                keeper.release(worker)

        await asyncio.gather(*(caller() for _ in range(8)))
    assert most <= 32


async def test_a_burial_that_fails_does_not_end_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    class Unburiable(ScriptedWorker):
        def discard(self) -> None:
            super().discard()
            raise OSError("the kernel says no")

    class Backend(ScriptedBackend):
        def start(self, spec: WorkerSpec) -> ScriptedWorker:
            worker = super().start(spec)
            worker.__class__ = Unburiable
            return worker

    with pool(Backend(), NO_RESERVE) as keeper:
        for _ in range(5):
            keeper.release(await keeper.lease(SPEC))
    assert "could not be discarded" in caplog.text


@pytest.mark.parametrize("policy", [NO_RESERVE, PoolPolicy(min_idle=1)])
async def test_the_shelves_of_sessions_are_forgotten(policy: PoolPolicy) -> None:
    clock = FrozenClock()
    backend = ScriptedBackend()
    with pool(backend, policy, clock=clock) as keeper:
        for number in range(50):
            session = WorkerSpec(session_id=f"s{number}")
            keeper.release(await keeper.lease(session))
            keeper.invalidate(session)  # as a run that changed its files does, also when the shelf is gone already
        clock.advance(policy.keep_idle_seconds + 1)
        keeper.release(await keeper.lease(SPEC))
        await eventually(lambda: set(keeper._shelves) <= {SPEC})


async def test_a_burst_is_forgotten_even_while_single_calls_go_on() -> None:
    clock = FrozenClock()
    backend = ScriptedBackend()
    policy = PoolPolicy(min_idle=1, max_idle=10)
    with pool(backend, policy, clock=clock) as keeper:
        for worker in await asyncio.gather(*(keeper.lease(SPEC) for _ in range(8))):
            keeper.release(worker)
        await eventually(lambda: keeper.status()["idle"] == 8)

        async def call() -> None:
            keeper.release(await keeper.lease(SPEC))
            await eventually(lambda: keeper.status()["busy"] == 0 == keeper.status()["starting"])

        for _ in range(14):  # until those of the burst are too old to be kept
            clock.advance(50)
            await call()
        await eventually(lambda: keeper.status() == {"idle": 1, "starting": 0, "busy": 0, "waiting": 0})


async def test_an_old_worker_is_replaced_unused() -> None:
    clock = FrozenClock()
    backend = ScriptedBackend()
    policy = PoolPolicy(min_idle=1, max_idle=1)
    with pool(backend, policy, clock=clock) as keeper:
        await eventually(lambda: keeper.status()["idle"] == 1)
        (old,) = backend.started
        clock.advance(policy.max_age_seconds + 1)
        other = WorkerSpec(session_id="somebody else, who wakes the starters")
        keeper.release(await keeper.lease(other))
        await eventually(lambda: old.discarded == 1)
        assert old.jobs == []
        await eventually(lambda: [worker.spec for worker in keeper.parked()].count(SPEC) == 1)


async def test_whoever_asked_for_it_is_told_of_every_worker_that_does_not_start() -> None:
    told: list[Exception] = []

    def refuse(_: WorkerSpec) -> None:
        raise IsolationUnavailable("no namespaces")

    def tell(error: Exception) -> None:
        told.append(error)
        raise RuntimeError("the journal is full")  # which is no reason for the pool to stop

    with pool(ScriptedBackend(on_start=refuse), NO_RESERVE, on_failure=tell) as keeper:
        for _ in range(2):
            with pytest.raises(IsolationUnavailable):
                await keeper.lease(SPEC)
    assert [str(error) for error in told] == ["no namespaces"] * 2


class Untidy(ScriptedBackend):
    """A backend in which tidying up does what the test says."""

    def __init__(self, tidy: Callable[[], bool]) -> None:
        super().__init__()
        self._tidy = tidy

    def tidy(self) -> bool:
        return self._tidy()


async def test_what_cannot_be_tidied_up_does_not_end_the_pool(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise OSError("the kernel says no")

    with pool(Untidy(fail), NO_RESERVE) as keeper:
        for _ in range(5):
            keeper.release(await asyncio.wait_for(keeper.lease(SPEC), 5))
    assert "could not be tidied up" in caplog.text


async def test_nobody_waits_while_it_is_tidied_up() -> None:
    tidying, enough = threading.Event(), threading.Event()

    def linger() -> bool:
        tidying.set()
        return enough.wait(5)

    with pool(Untidy(linger), PoolPolicy(min_idle=1), starters=1) as keeper:
        await eventually(tidying.is_set)
        started = time.monotonic()
        keeper.release(await keeper.lease(SPEC))
        assert time.monotonic() - started < 2
        enough.set()


async def test_who_comes_while_it_is_tidied_up_is_served_right_after() -> None:
    tidying, enough = threading.Event(), threading.Event()

    def linger() -> bool:
        tidying.set()
        return enough.wait(5)

    with pool(Untidy(linger), NO_RESERVE, starters=1) as keeper:
        await eventually(tidying.is_set)
        caller = asyncio.ensure_future(keeper.lease(SPEC))
        await eventually(lambda: keeper.status()["waiting"] == 1)
        enough.set()
        keeper.release(await asyncio.wait_for(caller, 2))  # not with the next tick


async def test_a_pool_that_is_closed_while_it_is_tidied_up_ends_right_after() -> None:
    tidying, enough = threading.Event(), threading.Event()

    def linger() -> bool:
        tidying.set()
        return enough.wait(5)

    with pool(Untidy(linger), NO_RESERVE, starters=2) as keeper:
        await eventually(tidying.is_set)
        closing = asyncio.ensure_future(asyncio.to_thread(keeper.close))
        await eventually(lambda: keeper._closed)
        enough.set()
        await asyncio.wait_for(closing, 2)
