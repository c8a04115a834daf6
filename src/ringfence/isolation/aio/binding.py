"""Which instance a session gets: decided over values, so that no two callers can decide at once.

An instance belongs to one session for as long as it lives. It is never handed on: what one session left in it, a file
or a process that waits, the next would find. Where room is needed, an idle one is destroyed and another made.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest


class SessionState(StrEnum):
    """What an instance is doing for its session."""

    IDLE = "idle"
    """Nobody uses it; a clean one is anybody's, one that was used is its session's."""
    ACQUIRING = "acquiring"
    """It is being made for a session, once, however many ask for it meanwhile."""
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The bounds an `AIOSandboxPool` moves in."""

    max_instances: int = 10
    min_instances: int = 2
    acquire_seconds: float = 60.0
    """How long a session waits for room before it is told that there is none."""
    start_seconds: float = 120.0
    """How long an instance may take from its start until it answers."""
    health_seconds: float = 15.0
    """How often each instance is looked at."""
    most_failures: int = 2
    """How often in a row it may fail to answer before it is given up."""

    def __post_init__(self) -> None:
        """Refuse bounds that nothing could keep to."""
        if not 1 <= self.max_instances <= 1000 or not 0 <= self.min_instances <= self.max_instances:
            raise InvalidRequest(
                f"an AIO pool has from {self.min_instances} to {self.max_instances} instances",
                reason="invalid_value",
                fix="set 0 <= min_instances <= max_instances and 1 <= max_instances <= 1000",
            )
        if min(self.acquire_seconds, self.start_seconds, self.health_seconds, self.most_failures) <= 0:
            raise InvalidRequest("the times of an AIO pool must be more than 0", reason="invalid_value")


@dataclass(frozen=True, slots=True)
class Slot:
    """One instance, as the decision sees it."""

    number: int
    state: SessionState
    session: str | None = None
    """Whose it is, from the first time on; nobody's before."""
    made_here: bool = True
    """Whether it can be destroyed and made anew; one that was only named to us cannot."""
    is_well: bool = True
    released_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Give:
    """Hand out this instance."""

    number: int


@dataclass(frozen=True, slots=True)
class Make:
    """Make an instance for the session; `instead_of` is the idle one of another session that gives way to it."""

    instead_of: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done before something changes; `why` is for whoever has waited too long."""

    why: str


Step = Give | Make | Wait


def decide(slots: Sequence[Slot], session: str, *, most: int, can_make: bool) -> Step:
    """Return what brings `session` closer to an instance."""
    own = [slot for slot in slots if slot.session == session]
    if own:
        slot = own[0]
        if slot.state is SessionState.ACQUIRING:
            return Wait("its instance is still being made")
        return Give(slot.number) if slot.is_well else Wait("its instance does not answer")
    clean = [slot for slot in slots if slot.session is None and slot.state is SessionState.IDLE and slot.is_well]
    if clean:
        return Give(min(slot.number for slot in clean))
    if can_make and len(slots) < most:
        return Make()
    idle = [slot for slot in slots if slot.state is SessionState.IDLE and slot.made_here]
    if can_make and idle:
        return Make(instead_of=min(idle, key=lambda slot: (slot.released_at, slot.number)).number)
    if not slots and not can_make:
        return Wait("there are no instances")
    return Wait("every instance is another session's")


def missing(slots: Sequence[Slot], config: PoolConfig) -> int:
    """Return how many clean instances should be made so that there are as many as there always should be."""
    return max(0, config.min_instances - len(slots))
