"""The parts that the tests of grants work with, over one home and one clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ringfence.authority.credential import Credential, ProposedCall
from ringfence.authority.grant import Grant
from ringfence.authority.policy import BUILT_IN
from ringfence.capability.budget import Budget
from ringfence.grants.biscuit import BiscuitCodec
from ringfence.grants.calls import CallsInMemory
from ringfence.grants.issuer import LocalIssuer
from ringfence.grants.keyring import KeyRing
from ringfence.grants.revocations import RevocationFile
from ringfence.grants.verifier import GrantVerifier
from ringfence.identifiers import TimeOrdered

CALL = ProposedCall("acme", "agent-7", "file_read", "call-1", "site-a")


@dataclass
class StillClock:
    """Implements `ports.Clock`: it is `ms` until a test sets it."""

    ms: int = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Desk:
    """One process that shares `home` with others."""

    home: Path
    clock: StillClock

    def __post_init__(self) -> None:
        self.codec = BiscuitCodec()
        self.revocations = RevocationFile(self.home, self.clock)
        self.keys = KeyRing(self.home, self.codec, self.clock, self.revocations)
        self.calls = CallsInMemory(self.clock)
        self.issuer = LocalIssuer(self.clock, TimeOrdered())
        self.verifier = GrantVerifier(
            codec=self.codec,
            find_key=self.keys.find,
            revocations=self.revocations,
            calls=self.calls,
            clock=self.clock,
        )

    def beside(self) -> Desk:
        """Return another process of the same home."""
        return Desk(self.home, self.clock)

    def credential(self, call: ProposedCall = CALL, *, calls: int | None = None) -> Credential:
        """Mint a grant that stays in the process."""
        return self.issuer.issue(BUILT_IN, call, budget=Budget(calls=calls))

    def token(self, call: ProposedCall = CALL, *, calls: int | None = None) -> str:
        """Mint and sign a grant."""
        return self.sign(self.credential(call, calls=calls).grant)

    def sign(self, grant: Grant) -> str:
        """Sign with the current key."""
        return self.codec.encode(grant, self.keys.signing_key())


def another(call: ProposedCall, **changes: str) -> ProposedCall:
    """Return the call with something else about it."""
    return replace(call, **changes)
