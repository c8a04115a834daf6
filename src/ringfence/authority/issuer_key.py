"""A key that signs grants: what everybody may know of it, and the half that only ever reaches the codec."""

from __future__ import annotations

from typing import Final, NoReturn

from ringfence.capability.canonical import digest_of
from ringfence.dataclass import dataclass

KEY_BYTES: Final = 32
# How far the clock of an issuer on another machine may be ahead of ours. There is no such grace at the end: what has
# expired has expired.
CLOCK_TOLERANCE_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """The public half of an Ed25519 key and the time it may be used in."""

    key_id: str
    public: bytes
    not_before: int
    expires_at: int

    def is_valid(self, now_ms: int) -> bool:
        """Whether it may sign and verify at `now_ms`."""
        return self.not_before - CLOCK_TOLERANCE_MS <= now_ms < self.expires_at

    @property
    def fingerprint(self) -> str:
        """The hash of the public half, for people to compare."""
        return digest_of(self.public)


class SigningKey:
    """A key with its private half, which no repr, pickle, comparison or error shows."""

    __slots__ = ("_secret", "key")

    def __init__(self, key: IssuerKey, secret: bytes) -> None:
        """Take both halves."""
        self.key = key
        self._secret = secret

    def reveal(self) -> bytes:
        """Return the private half; for a codec, at the moment it signs."""
        return self._secret

    def __repr__(self) -> str:
        return f"SigningKey({self.key.key_id})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key does not leave the process")


def key_id_of(public: bytes) -> str:
    """Return the short name of a key: eight hexadecimal digits of its fingerprint."""
    return digest_of(public).removeprefix("sha256:")[:8]
