"""The law of the pool, whatever happens in whichever order: one instance a session, one session an instance."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.isolation.aio.binding import Give, Make, PoolConfig, SessionState, Slot, Wait, decide
from ringfence.isolation.aio.client import AIOSandboxClient
from ringfence.isolation.aio.roster import Box, BringUp, Roster, Steps, Waiter
from ringfence.testing import FrozenClock

IDLE, ACQUIRING, BUSY = SessionState.IDLE, SessionState.ACQUIRING, SessionState.BUSY


def test_the_defaults_are_those_of_the_document() -> None:
    assert (PoolConfig().max_instances, PoolConfig().min_instances) == (10, 2)


@pytest.mark.parametrize(
    "bounds",
    [{"max_instances": 0}, {"min_instances": -1}, {"min_instances": 11}, {"acquire_seconds": 0}, {"start_seconds": -1}],
)
def test_bounds_that_nothing_could_keep_to_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        PoolConfig(**bounds)


@pytest.mark.parametrize(
    ("slots", "can_make", "step"),
    [
        ([], True, Make()),
        ([], False, Wait("there are no instances")),
        ([Slot(1, IDLE, "a")], True, Give(1)),
        ([Slot(1, BUSY, "a")], True, Give(1)),
        ([Slot(1, ACQUIRING, "a")], True, Wait("its instance is still being made")),
        ([Slot(1, BUSY, "a", is_well=False)], True, Wait("its instance does not answer")),
        ([Slot(2, IDLE), Slot(1, IDLE)], True, Give(1)),
        ([Slot(1, IDLE, is_well=False)], True, Make()),
        ([Slot(1, ACQUIRING)], True, Make()),
        ([Slot(1, IDLE, "b")], True, Make()),
        ([Slot(1, IDLE, "b", released_at=2), Slot(2, IDLE, "c", released_at=1)], True, Make(instead_of=2)),
        ([Slot(1, BUSY, "b"), Slot(2, ACQUIRING, "c")], True, Wait("every instance is another session's")),
        ([Slot(1, IDLE, "b", made_here=False)], False, Wait("every instance is another session's")),
    ],
)
def test_what_a_session_gets(slots: list[Slot], can_make: bool, step: Give | Make | Wait) -> None:
    assert decide(slots, "a", most=2, can_make=can_make) == step


class Pool(RuleBasedStateMachine):
    """A roster whose steps are carried out late, in any order, and fail when they like."""

    @initialize(most=st.integers(1, 3), least=st.integers(0, 2), named=st.booleans())
    def begin(self, most: int, least: int, named: bool) -> None:
        self.most, self.named = most, named
        self.clock = FrozenClock()
        self.config = PoolConfig(most, min(least, most), most_failures=2)
        self.roster = Roster(self.config, self.clock, can_make=not named)
        self.to_do: Steps = []
        self.alive: set[Box] = set()
        self.sessions_of: dict[Box, set[str]] = {}
        self.leases: Counter[str] = Counter()
        self.waiting: list[Waiter] = []
        self.number = 0
        if named:
            self.note([self.roster.add(client=self.client(), made_here=False) for _ in range(most)])
        else:
            self.note(self.roster.refill())

    def client(self) -> AIOSandboxClient:
        self.number += 1
        return AIOSandboxClient(f"http://127.0.0.1:{self.number}")

    def note(self, steps: Steps) -> None:
        self.to_do += steps
        for waiter in tuple(self.waiting):
            if waiter.told.done():
                self.waiting.remove(waiter)
                if waiter.told.exception() is None:
                    box = next(box for box in self.roster.boxes.values() if box.client is waiter.told.result())
                    self.sessions_of.setdefault(box, set()).add(waiter.session)
                    self.leases[waiter.session] += 1

    @rule(session=st.sampled_from("abcd"))
    def acquire(self, session: str) -> None:
        waiter = Waiter(session)
        self.waiting.append(waiter)
        self.roster.waiters.append(waiter)
        self.note(self.roster.settle())

    @rule(session=st.sampled_from("abcd"), forget=st.booleans())
    def release(self, session: str, forget: bool) -> None:
        self.leases[session] -= bool(self.leases[session])
        self.note(self.roster.release(session, forget=forget))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def stop_waiting(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(waiter)
        self.note(self.roster.give_up(waiter)[1])

    @precondition(lambda self: self.to_do)
    @rule(data=st.data(), works=st.booleans())
    def carry_out(self, data: st.DataObject, works: bool) -> None:
        step = self.to_do.pop(data.draw(st.integers(0, len(self.to_do) - 1)))
        if not isinstance(step, BringUp):
            self.alive.discard(step.box)
            self.roster.destroyed()
            self.note([*self.roster.settle(), *self.roster.refill()])
        elif works:
            self.alive.add(step.box)
            self.note(self.roster.came_up(step.box, step.box.client or self.client(), None) or [])
        else:
            self.note(self.roster.failed(step.box, Unavailable("it did not come up")))

    @rule(data=st.data(), well=st.booleans(), final=st.booleans())
    def look(self, data: st.DataObject, well: bool, final: bool) -> None:
        boxes = [box for box in self.roster.boxes.values() if box.slot.state is not ACQUIRING]
        if boxes:
            self.note(self.roster.looked_at(data.draw(st.sampled_from(boxes)), well=well, final=final))

    @rule(seconds=st.integers(1, 100))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.note(self.roster.refill())

    @invariant()
    def a_session_has_one_instance(self) -> None:
        owned = Counter(box.slot.session for box in self.roster.boxes.values() if box.slot.session is not None)
        assert not owned or max(owned.values()) == 1

    @invariant()
    def an_instance_has_one_session_in_its_life(self) -> None:
        assert all(len(sessions) == 1 for sessions in self.sessions_of.values())

    @invariant()
    def there_are_never_more_than_allowed(self) -> None:
        assert len(self.roster.boxes) <= self.most
        being_made = [step for step in self.to_do if isinstance(step, BringUp) and step.box not in self.alive]
        assert len(self.alive) + len(being_made) <= self.most or self.named

    @invariant()
    def what_is_busy_is_what_somebody_holds(self) -> None:
        for box in self.roster.boxes.values():
            assert (box.slot.state is BUSY) == (box.leases > 0)

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        for waiter in self.roster.waiters:
            box = self.roster.of(waiter.session)
            assert box is None or box.slot.state is ACQUIRING or not box.slot.is_well

    @invariant()
    def what_is_only_named_is_never_destroyed(self) -> None:
        assert not self.named or len(self.roster.boxes) == self.most


Pool.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestPool = Pool.TestCase
