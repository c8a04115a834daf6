"""How many workers to keep parked: a function from what the pool sees to what it should do next."""

from __future__ import annotations

from ringfence.dataclass import dataclass, replace

_WORKER_BYTES = 3_000_000
_WORKER_DESCRIPTORS = 13
"""What one more parked worker costs that shares its memory with the others: measured, and rounded up."""


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The bounds the pool moves in."""

    min_idle: int = 2
    max_idle: int = 10
    crowd_idle: int = 64
    """The same for the default kind where workers share their memory, if so many were lately wanted at once."""
    max_leased: int = 64
    keep_idle_seconds: float = 120.0
    max_age_seconds: float = 600.0
    refills_at_once: int = 10
    """How many are started at a time for nobody yet; who waits is never held up by it."""


@dataclass(frozen=True, slots=True)
class ShelfState:
    """One shelf holds the workers of one spec."""

    parked_at: tuple[float, ...] = ()
    """When each idle worker was parked, oldest first."""
    starting: int = 0
    leased: int = 0
    waiting: int = 0
    recent_peak: int = 0
    """The most runs that were wanted at once lately."""
    last_wanted: float = 0.0
    always_ready: bool = False
    """The default shelf is kept ready even when nobody asked yet."""
    shares_memory: bool = False
    """Workers are forked from one that stays: one more costs little."""


@dataclass(frozen=True, slots=True)
class ShelfStep:
    """What brings a shelf closer to the policy."""

    start: int = 0
    retire: int = 0
    """So many of the oldest idle workers are to go."""


def next_step(state: ShelfState, policy: PoolPolicy, now: float) -> ShelfStep:
    """Return the step that brings `state` closer to `policy`."""
    target = idle_target(state, policy, now)
    aged = sum(1 for since in state.parked_at if now - since > policy.max_age_seconds)
    fresh = len(state.parked_at) - aged
    surplus = max(0, fresh - target) if _calm(state, policy, now) else 0
    wanted = target + state.waiting - (fresh - surplus) - state.starting
    room = policy.max_leased + policy.max_idle - fresh - state.leased - state.starting
    at_once = max(state.waiting, policy.refills_at_once) - state.starting
    return ShelfStep(start=max(0, min(wanted, room, at_once)), retire=aged + surplus)


def idle_target(state: ShelfState, policy: PoolPolicy, now: float) -> int:
    """Return how many workers should be parked: as many as were lately wanted at once."""
    if _calm(state, policy, now):
        return min(policy.min_idle, policy.max_idle) if state.always_ready else 0
    floor = policy.min_idle if state.always_ready else 1
    most = most_idle(policy, always_ready=state.always_ready, shares_memory=state.shares_memory)
    return min(most, max(floor, state.recent_peak))


def most_idle(policy: PoolPolicy, *, always_ready: bool, shares_memory: bool) -> int:
    """Return how many of a shelf may ever be parked.

    Only the default shelf may have many: there is one, while sessions and packages bring shelves without number.
    """
    return policy.crowd_idle if always_ready and shares_memory else policy.max_idle


def is_low(parked: int, recent_peak: int, most: int) -> bool:
    """Whether less than half of what should be parked is left; otherwise a refill waits for the runs it would slow.

    Of numbers alone: every run asks.
    """
    return parked * 2 + 1 < min(most, recent_peak)


def affordable(policy: PoolPolicy, *, memory_bytes: int, descriptors: int) -> PoolPolicy:
    """Return `policy` with a crowd's reserve in a fiftieth of the memory and a quarter of the descriptors there are."""
    fits = min(memory_bytes // 50 // _WORKER_BYTES, descriptors // 4 // _WORKER_DESCRIPTORS)
    return replace(policy, crowd_idle=max(policy.max_idle, min(policy.crowd_idle, fits)))


def _calm(state: ShelfState, policy: PoolPolicy, now: float) -> bool:
    return state.leased == 0 and state.waiting == 0 and now - state.last_wanted > policy.keep_idle_seconds
