"""What the pipeline asks of whoever counts its budgets, on this machine or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from ringfence.budgets.reservation import NOT_MEASURED, Reservation, Settlement, Usage
from ringfence.budgets.scope import Chain, Scope
from ringfence.capability.budget import Budget

if TYPE_CHECKING:
    from ringfence.database.port import Cursor

Measured = Callable[[str], Usage | None]
"""Returns what is still known about the use of a run whose owner died, by its `exec_id`."""


class BudgetMeter(Protocol):
    """Counts what every scope uses: whoever runs has reserved before, and settles after.

    Every method is one atomic step for all scopes at once, may be called from any thread, and either happened when it
    returns or did not happen. One that cannot be carried out raises, so nothing ever runs unmetered.
    """

    waits: bool
    """Whether a call may wait for a disk or a network, and so belongs in a thread rather than in an event loop."""

    def reserve(self, chain: Chain, amounts: Budget, exec_id: str, *, least: Budget | None = None) -> Reservation:
        """Hold `amounts` of every account of `chain` for the run `exec_id`, or as little as `least`.

        Raises:
            QuotaExceeded: A scope has too little left; its details name `scope`, `kind`, `limit` and `observed`.
            Unavailable: Nobody can tell how much is left; nothing may run.
            InvalidRequest: `exec_id` has a reservation already, or an amount is not a number.
        """
        ...

    def settle(self, reservation: Reservation, used: Usage) -> Settlement:
        """Charge what was used and give back the rest; a reservation is settled once, however often it is asked.

        Raises:
            Unavailable: It could not be written; the reservation still holds all of it.
        """
        ...

    def settling(self, reservation: Reservation, used: Usage) -> Callable[[Cursor], None] | None:
        """Return what does the same as `settle` inside a transaction of the journal, if the two share a database."""
        ...

    def release(self, reservation: Reservation) -> Settlement:
        """Give all of it back: what it was made for never started.

        Raises:
            Unavailable: It could not be written; the reservation still holds all of it.
        """
        ...

    def recover(self, measured: Measured = lambda _: None) -> tuple[Settlement, ...]:
        """Settle what dead processes had reserved: at what `measured` knows, else at all that was reserved.

        Raises:
            Unavailable: It could not be read or written.
        """
        ...

    def forget(self, scopes: Iterable[Scope]) -> None:
        """Drop the accounts of scopes that can never be used again: closed calls, grants that are over."""
        ...


def known_or_all(measured: Measured, exec_id: str) -> Usage:
    """Return what is known about a run that nobody saw the end of, or that nothing is."""
    return measured(exec_id) or NOT_MEASURED
