"""The parts that `ringfence grant` and `ringfence key` work with, put together over one home."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ringfence.clock import SystemClock
from ringfence.grants.biscuit import BiscuitCodec
from ringfence.grants.calls import CallsInMemory
from ringfence.grants.issuer import LocalIssuer
from ringfence.grants.keyring import KeyRing
from ringfence.grants.revocations import RevocationFile
from ringfence.grants.verifier import GrantVerifier
from ringfence.identifiers import TimeOrdered
from ringfence.ports import Clock
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


def open_desk() -> Desk:
    """Return the desk of `$RINGFENCE_HOME`; nothing is read or made yet."""
    home, clock, codec = default_home(), SystemClock(), BiscuitCodec()
    revocations = RevocationFile(home, clock)
    keys = KeyRing(home, codec, clock, revocations)
    verifier = GrantVerifier(
        codec=codec, find_key=keys.find, revocations=revocations, calls=CallsInMemory(clock), clock=clock
    )
    return Desk(home, clock, codec, revocations, keys, LocalIssuer(clock, TimeOrdered()), verifier)


def shown_time(ms: int) -> str:
    """Return a time as people read it, in UTC; numbers that no calendar has stay numbers."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
