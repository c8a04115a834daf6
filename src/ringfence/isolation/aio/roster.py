"""Who has which AIO instance, and who waits for one: every change is a method here, and says what is to be done for it.

Nothing here waits, starts or locks. The pool holds its lock around each call, and then does what it was told.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ringfence.dataclass import dataclass, field, replace
from ringfence.isolation.aio.binding import Give, Make, PoolConfig, SessionState, Slot, Wait, decide, missing
from ringfence.isolation.aio.client import AIOSandboxClient
from ringfence.isolation.aio.starting import Instance


@dataclass(slots=True, eq=False)
class Box:
    """One instance and what is known of it."""

    slot: Slot
    client: AIOSandboxClient | None = None
    instance: Instance | None = None
    leases: int = 0
    failures: int = 0
    looked_at: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """Somebody who waits for the instance of a session."""

    session: str
    told: Future[AIOSandboxClient] = field(default_factory=Future)

    def refuse(self, error: Exception) -> None:
        """Tell him that it does not come."""
        if self.told.set_running_or_notify_cancel():
            self.told.set_exception(error)


@dataclass(frozen=True, slots=True)
class BringUp:
    """Start this instance, or look at it for the first time."""

    box: Box


@dataclass(frozen=True, slots=True)
class Destroy:
    """End this instance; its room is free once it is gone."""

    box: Box


Steps = list[BringUp | Destroy]


class Roster:
    """The instances of one pool and those who wait for them."""

    def __init__(self, config: PoolConfig, clock: Callable[[], float], *, can_make: bool) -> None:
        """Begin with nothing."""
        self._config = config
        self._clock = clock
        self._can_make = can_make
        self._next = 0
        self._leaving = 0
        self._quiet_until = 0.0
        self._owed: dict[str, int] = {}
        self.boxes: dict[int, Box] = {}
        self.waiters: list[Waiter] = []

    def add(
        self, session: str | None = None, *, client: AIOSandboxClient | None = None, made_here: bool = True
    ) -> BringUp:
        """Note that an instance is being made: from now on it counts, and whoever asks for the session waits for it."""
        self._next += 1
        box = Box(Slot(self._next, SessionState.ACQUIRING, session, made_here), client)
        self.boxes[self._next] = box
        return BringUp(box)

    def settle(self) -> Steps:
        """Give everybody who waits what there is for him, and say what has to be made or destroyed for the others."""
        steps: Steps = []
        coming = self._leaving
        for waiter in tuple(self.waiters):
            match self._decide(waiter.session):
                case Give(number):
                    self._give(self.boxes[number], waiter)
                case Make() as step if step.instead_of is None:
                    steps.append(self.add(waiter.session))
                case Make(instead_of):
                    if coming:
                        coming -= 1  # room is being made already
                    else:
                        steps.append(self._drop(self.boxes[instead_of or 0]))
                case Wait():
                    pass
        return steps

    def refill(self) -> Steps:
        """Say what to make so that there are as many as there always should be; after a failure, only in a while."""
        if not self._can_make or self._clock() < self._quiet_until:
            return []
        room = self._config.max_instances - self._leaving - len(self.boxes)
        return [self.add() for _ in range(min(room, missing(self._slots(), self._config)))]

    def came_up(self, box: Box, client: AIOSandboxClient, instance: Instance | None) -> Steps | None:
        """Note that an instance answers; None where nobody wants it any more."""
        if self.boxes.get(box.slot.number) is not box:
            return None
        box.client, box.instance, box.looked_at = client, instance, self._clock()
        box.slot = replace(box.slot, state=SessionState.IDLE, is_well=True)
        return self.settle()

    def failed(self, box: Box, error: Exception) -> Steps:
        """Note that an instance did not come up; one that was only named is looked at again later."""
        if self.boxes.get(box.slot.number) is not box:
            return []
        if not box.slot.made_here:
            box.slot = replace(box.slot, state=SessionState.IDLE, is_well=False)
            box.looked_at = self._clock()
            return []
        del self.boxes[box.slot.number]
        self._quiet_until = self._clock() + self._config.health_seconds
        for waiter in [waiter for waiter in self.waiters if waiter.session == box.slot.session]:
            self.waiters.remove(waiter)
            waiter.refuse(error)
        return self.settle()

    def looked_at(self, box: Box, *, well: bool, final: bool) -> Steps:
        """Note whether an instance answered; one that did not too often, or that failed its session, is given up."""
        if self.boxes.get(box.slot.number) is not box:
            return []
        box.looked_at = self._clock()
        box.failures = 0 if well else box.failures + 1
        gone = not well and (final or box.failures >= self._config.most_failures)
        if gone and box.slot.made_here:
            # its session, if it has one, gets another: nothing of this one can be trusted to be there
            return [self._drop(box), *self.settle(), *self.refill()]
        if well or gone:
            box.slot = replace(box.slot, is_well=well)
        return self.settle()

    def destroyed(self) -> None:
        """Note that an instance is gone, and its room free."""
        self._leaving -= 1

    def release(self, session: str, *, forget: bool) -> Steps:
        """Take back one lease; with the last one the instance is idle, or destroyed where it is to be forgotten."""
        if owed := self._owed.pop(session, 0):
            if owed > 1:
                self._owed[session] = owed - 1
            return []
        box = self.of(session)
        if box is None or box.leases == 0:
            return []
        box.leases -= 1
        if box.leases:
            return []
        box.slot = replace(box.slot, state=SessionState.IDLE, released_at=self._clock())
        dropped: Steps = [self._drop(box)] if forget and box.slot.made_here else []
        return [*dropped, *self.settle()]

    def give_up(self, waiter: Waiter) -> tuple[str, Steps]:
        """Have somebody stop waiting, and return why it took so long; what came in this very moment is given back."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
            step = self._decide(waiter.session)
            return (step.why if isinstance(step, Wait) else "it was about to be made"), []
        told = waiter.told
        given = told.done() and not told.cancelled() and told.exception() is None
        return "it had just come", self.release(waiter.session, forget=False) if given else []

    def clear(self) -> tuple[list[Box], list[Waiter]]:
        """Forget everything, and return what is left to end and to tell."""
        boxes, waiters = list(self.boxes.values()), self.waiters
        self.boxes, self.waiters, self._owed = {}, [], {}
        return boxes, waiters

    def due(self) -> list[Box]:
        """Return the instances that nobody looked at for a while."""
        latest = self._clock() - self._config.health_seconds
        return [
            box
            for box in self.boxes.values()
            if box.slot.state is not SessionState.ACQUIRING and box.looked_at <= latest
        ]

    def of(self, session: str) -> Box | None:
        """Return the instance of a session."""
        return next((box for box in self.boxes.values() if box.slot.session == session), None)

    def status(self) -> dict[str, Any]:
        """Return what each instance does, and for whom."""
        return {
            "instances": [
                {
                    "number": box.slot.number,
                    "state": str(box.slot.state),
                    "session_id": box.slot.session,
                    "url": None if box.client is None else box.client.shown,
                    "healthy": box.slot.is_well,
                    "leases": box.leases,
                }
                for box in self.boxes.values()
            ],
            "waiting": len(self.waiters),
        }

    def _slots(self) -> list[Slot]:
        return [box.slot for box in self.boxes.values()]

    def _decide(self, session: str) -> Give | Make | Wait:
        most = self._config.max_instances - self._leaving
        return decide(self._slots(), session, most=most, can_make=self._can_make)

    def _give(self, box: Box, waiter: Waiter) -> None:
        self.waiters.remove(waiter)
        if box.client is not None and waiter.told.set_running_or_notify_cancel():
            box.slot = replace(box.slot, state=SessionState.BUSY, session=waiter.session)
            box.leases += 1
            waiter.told.set_result(box.client)

    def _drop(self, box: Box) -> Destroy:
        del self.boxes[box.slot.number]
        if box.leases and box.slot.session is not None:
            # those who had it give it back some day, and must not give back the one that comes in its place
            self._owed[box.slot.session] = self._owed.get(box.slot.session, 0) + box.leases
        self._leaving += 1
        return Destroy(box)
