"""The parts that `ringfence grant` and `ringfence key` work with, put together over one home."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ringfence.clock import SystemClock
from ringfence.database.address import default_database, open_database
from ringfence.database.sqlite import DATABASE_NAME
from ringfence.dataclass import dataclass
from ringfence.grants.biscuit import BiscuitCodec
from ringfence.grants.calls import CallsInMemory
from ringfence.grants.issuer import LocalIssuer
from ringfence.grants.keyring import KeyRing
from ringfence.grants.revocations import RevocationFile
from ringfence.grants.verifier import GrantVerifier
from ringfence.identifiers import TimeOrdered
from ringfence.journal.calls import CallsInDatabase
from ringfence.ports import CallRegister, Clock
from ringfence.workspaces.home import default_home


@dataclass(frozen=True, slots=True)
class Desk:
    """Everything about grants that one home has."""

    home: Path
    clock: Clock
    codec: BiscuitCodec
    revocations: RevocationFile
    keys: KeyRing
    issuer: LocalIssuer
    verifier: GrantVerifier


def open_desk(home: Path | None = None) -> Desk:
    """Return the desk of a home, or of `$RINGFENCE_HOME`; nothing is read or made yet."""
    home, clock, codec = home or default_home(), SystemClock(), BiscuitCodec()
    revocations = RevocationFile(home, clock)
    keys = KeyRing(home, codec, clock, revocations)
    verifier = GrantVerifier(
        codec=codec, find_key=keys.find, revocations=revocations, calls=_calls(home, clock), clock=clock
    )
    return Desk(home, clock, codec, revocations, keys, LocalIssuer(clock, TimeOrdered()), verifier)


def _calls(home: Path, clock: Clock) -> CallRegister:
    """Return who knows which calls are over; looking at a grant makes no database where there is none."""
    url = default_database()
    if url is None and not (home / DATABASE_NAME).exists():
        return CallsInMemory(clock)
    return CallsInDatabase(open_database(home, url), clock)


def shown_time(ms: int) -> str:
    """Return a time as people read it, in UTC; numbers that no calendar has stay numbers."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
