"""Whose turn it is: a bounded line before the box, fair between tenants, under caps of instance, tenant, space, user.

`Line` decides and knows no time and no task; `Admission` lets coroutines wait for what it decides.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import Overloaded

SCOPES: Final = ("instance", "tenant", "space", "user")
"""In the order in which a refusal names them: the widest that is full comes first."""
Account = tuple[str, str, str]
"""Scope, tenant and name."""
_INSTANCE: Final = ("instance", "", "")
_LONGEST_ADVICE: Final = 60
_FIRST_GUESS_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """On whose account a turn is taken; a space and a user are those of their tenant."""

    tenant: str
    user: str
    space: str | None = None

    def scopes(self) -> tuple[Account, ...]:
        """Return every account."""
        user = ("user", self.tenant, self.user)
        if self.space is None:
            return _INSTANCE, ("tenant", self.tenant, ""), user
        return _INSTANCE, ("tenant", self.tenant, ""), ("space", self.tenant, self.space), user


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How many run and how many wait at most, by scope; None is no cap beyond those around it.

    The line of the whole instance is longer than that of a tenant, so that nobody's crowd closes it to the others.
    """

    instance: int = 4
    tenant: int | None = None
    space: int | None = None
    user: int | None = None
    waiting: int = 1024
    waiting_of_tenant: int | None = 256
    waiting_of_space: int | None = None
    waiting_of_user: int | None = None

    def running_in(self, scope: str) -> int | None:
        """Return how many of a scope run at once."""
        return (self.instance, self.tenant, self.space, self.user)[SCOPES.index(scope)]

    def waiting_in(self, scope: str) -> int | None:
        """Return how many of a scope may stand in line."""
        return (self.waiting, self.waiting_of_tenant, self.waiting_of_space, self.waiting_of_user)[SCOPES.index(scope)]


class Line:
    """Who waits and who runs; the tenants take turns, and within a tenant whoever came first goes first.

    Somebody whose user or space has as many running as it may is passed over, not waited for: he holds up nobody else,
    and is the first of his tenant again as soon as one of his own has ended.
    """

    def __init__(self, caps: Caps) -> None:
        """Nobody waits, nobody runs."""
        self._caps = caps
        self._by_tenant: OrderedDict[str, OrderedDict[int, Claim]] = OrderedDict()
        self._running: Counter[Account] = Counter()
        self._waiting: Counter[Account] = Counter()

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return self._waiting[_INSTANCE]

    @property
    def running(self) -> int:
        """How many have their turn."""
        return self._running[_INSTANCE]

    def full_for(self, claim: Claim) -> str | None:
        """Return the widest scope in which nobody more may stand in line, or nothing where there is room."""
        if not self.waiting and self._may_run(claim):
            return None
        for account in claim.scopes():
            most = self._caps.waiting_in(account[0])
            if most is not None and self._waiting[account] >= most:
                return account[0]
        return None

    def join(self, ticket: int, claim: Claim) -> None:
        """Stand at the end of the tenant's line, whether or not there is room: who promised has looked before."""
        self._by_tenant.setdefault(claim.tenant, OrderedDict())[ticket] = claim
        _count(self._waiting, claim)

    def withdraw(self, ticket: int, claim: Claim) -> bool:
        """Leave the line; False for who is not in it any more."""
        if ticket not in self._by_tenant.get(claim.tenant, ()):
            return False
        self._leave(ticket, claim)
        return True

    def next(self) -> int | None:
        """Give the next ticket its turn and return it, or nothing while nobody may go."""
        if self.running >= self._caps.instance:
            return None
        for tenant, line in self._by_tenant.items():
            if not self._has_room(("tenant", tenant, "")):
                continue
            for ticket, claim in line.items():
                if self._may_run(claim):
                    self._leave(ticket, claim)
                    if tenant in self._by_tenant:
                        self._by_tenant.move_to_end(tenant)
                    _count(self._running, claim)
                    return ticket
        return None

    def done(self, claim: Claim) -> None:
        """End a turn."""
        _uncount(self._running, claim)

    def _may_run(self, claim: Claim) -> bool:
        return all(map(self._has_room, claim.scopes()))

    def _has_room(self, account: Account) -> bool:
        most = self._caps.running_in(account[0])
        return most is None or self._running[account] < most

    def _leave(self, ticket: int, claim: Claim) -> None:
        line = self._by_tenant[claim.tenant]
        del line[ticket]
        if not line:
            del self._by_tenant[claim.tenant]
        _uncount(self._waiting, claim)


def _count(counted: Counter[Account], claim: Claim) -> None:
    for account in claim.scopes():
        counted[account] += 1


def _uncount(counted: Counter[Account], claim: Claim) -> None:
    for account in claim.scopes():
        counted[account] -= 1
        if not counted[account]:
            del counted[account]


class Turn:
    """One place in line, then one turn; whoever has it gives it back with `Admission.leave`."""

    __slots__ = ("began", "claim", "coming", "ticket")

    def __init__(self, ticket: int, claim: Claim) -> None:
        """Made by `Admission.join`."""
        self.ticket = ticket
        self.claim = claim
        self.coming: asyncio.Future[None] | None = None
        self.began: float | None = None


class Admission:
    """Lets executions wait for their turn; of one event loop."""

    def __init__(self, caps: Caps, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nobody waits yet."""
        self._caps = caps
        self._line = Line(caps)
        self._clock = clock
        self._tickets = 0
        self._turns: dict[int, Turn] = {}
        self._mean_seconds = _FIRST_GUESS_SECONDS

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return self._line.waiting

    @property
    def running(self) -> int:
        """How many have their turn."""
        return self._line.running

    def refusal_of(self, claim: Claim) -> Overloaded | None:
        """Return why nobody more of this claim may stand in line, or nothing where there is room."""
        scope = self._line.full_for(claim)
        if scope is None:
            return None
        most = self._caps.waiting_in(scope)
        return Overloaded(
            f"as many executions of this {scope} as may wait are waiting",
            scope=scope,
            limit=0 if most is None else most,
            retry_after_seconds=self._advice(),
        )

    def join(self, claim: Claim) -> Turn:
        """Take a place in line; see `Line.join`."""
        self._tickets += 1
        turn = Turn(self._tickets, claim)
        self._turns[turn.ticket] = turn
        self._line.join(turn.ticket, claim)
        self._admit()
        return turn

    async def wait(self, turn: Turn) -> None:
        """Return when it is this one's turn; who is cancelled meanwhile has left the line, or given his turn back."""
        if turn.began is not None:
            return
        turn.coming = asyncio.get_running_loop().create_future()
        try:
            await turn.coming
        except asyncio.CancelledError:
            self.leave(turn)
            raise

    def leave(self, turn: Turn) -> None:
        """Give the turn back, or the place in line; whoever comes next goes on."""
        if self._turns.pop(turn.ticket, None) is None:
            return
        if self._line.withdraw(turn.ticket, turn.claim):
            return
        self._line.done(turn.claim)
        if turn.began is not None:
            self._mean_seconds += (self._clock() - turn.began - self._mean_seconds) / 8
        self._admit()

    def _admit(self) -> None:
        while (ticket := self._line.next()) is not None:
            turn = self._turns[ticket]
            turn.began = self._clock()
            if turn.coming is not None and not turn.coming.done():
                turn.coming.set_result(None)

    def _advice(self) -> int:
        """Return after how many seconds half of those who wait now will probably have had their turn."""
        seconds = self._line.waiting * self._mean_seconds / (2 * self._caps.instance)
        return max(1, min(_LONGEST_ADVICE, math.ceil(seconds)))
