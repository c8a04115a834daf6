"""Grants as Biscuit tokens: used for their signed chain of blocks, while what a block says is ours and judged by us.

Every block is one fact that holds the bytes of canonical JSON; no Datalog of a token is ever evaluated. A token with
anything else in it is refused: a check that somebody wrote and nobody evaluates would be a restriction that does not
restrict. The first block also has a check that only we satisfy, so that a verifier that does not know the fact refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.credential import Credential
from ringfence.authority.grant import read_grant
from ringfence.authority.issuer_key import KEY_BYTES, IssuerKey, key_id_of
from ringfence.authority.narrowing import read_narrowing
from ringfence.capability.canonical import canonical
from ringfence.errors import Denied, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from types import ModuleType

    from ringfence.authority.grant import Grant
    from ringfence.authority.issuer_key import SigningKey
    from ringfence.authority.narrowing import Narrowing

MAX_CHARACTERS: Final = 1 << 16
MAX_BLOCKS: Final = 8
_FIRST = re.compile(r"ringfence_grant\(hex:([0-9a-f]+)\);\ncheck if ringfence_grants\(1\);\n")
_LATER = re.compile(r"ringfence_narrowing\(hex:([0-9a-f]+)\);\n")
_TEXT = re.compile(r"[A-Za-z0-9_=-]+")


class BiscuitCodec:
    """Implements `ports.GrantCodec`."""

    def new_key(self) -> tuple[bytes, bytes]:
        """Return the private and the public half of a fresh Ed25519 key."""
        pair = _library().KeyPair()
        return bytes(pair.private_key.to_bytes()), bytes(pair.public_key.to_bytes())

    def encode(self, grant: Grant, key: SigningKey) -> str:
        """Return `grant` as a token of one block.

        Raises:
            InvalidRequest: The grant is longer than a token may be.
        """
        library = _library()
        form = {"grant": grant.to_json(), "key": key.key.public.hex()}
        builder = library.BiscuitBuilder(
            "ringfence_grant({content}); check if ringfence_grants(1)", {"content": canonical(form)}
        )
        builder.set_root_key_id(int(key.key.key_id, 16))
        secret = library.PrivateKey.from_bytes(key.reveal(), library.Algorithm.Ed25519)
        return _bounded(builder.build(secret).to_base64())

    def attenuate(self, token: str, narrowing: Narrowing) -> str:
        """Return a token that also takes away `narrowing`.

        Raises:
            Denied: It is no token, or not as it was signed.
            InvalidRequest: The narrowing makes it longer than tokens may be, or more than can be worked out.
        """
        read_narrowing(narrowing.to_json())
        narrowing.of(self.peek(token).grant)
        biscuit = self._verified(token, self._claimed_key(token))
        if biscuit.block_count() >= MAX_BLOCKS:
            raise InvalidRequest(f"a grant is narrowed at most {MAX_BLOCKS - 1} times", reason="too_large")
        block = _library().BlockBuilder("ringfence_narrowing({content})", {"content": canonical(narrowing.to_json())})
        return _bounded(biscuit.append(block).to_base64())

    def peek(self, token: str) -> Credential:
        """Read a token that is whole, whoever signed it: to show it, never to act on it.

        Raises:
            Denied: It is no token, or not as it was signed.
        """
        public = self._claimed_key(token)
        return _credential(self._verified(token, public), IssuerKey(key_id_of(public), public, 0, 0))

    def decode(self, token: str, find: Callable[[str], IssuerKey | None]) -> Credential:
        """Read a token signed by the key it names; what it allows is the meet of all its blocks.

        Raises:
            Denied: It is no token, its key is unknown or another, or it is not as it was signed.
        """
        key_id = self._key_id(token)
        key = find(key_id)
        if key is None:
            raise Denied(
                f"the grant names key {key_id}, which is not known here",
                reason="unknown_key",
                fix="present a grant signed by a key of 'ringfence key list'",
                key_id=key_id,
            )
        try:
            biscuit = self._verified(token, key.public)
        except Denied as denied:
            raise self._signed_by_another(token, key) or denied from None
        return _credential(biscuit, key)

    def _signed_by_another(self, token: str, named: IssuerKey) -> Denied | None:
        """Tell a token that is whole under another key from one that was changed; both are refused."""
        try:
            claimed = self._claimed_key(token)
            if claimed == named.public:
                return None
            self._verified(token, claimed)
        except Denied:
            return None
        return Denied(f"the grant names key {named.key_id} and is signed by another", reason="wrong_key")

    def _key_id(self, token: str) -> str:
        number = self._unverified(token).root_key_id()
        if number is None:
            raise _bad("it names no key")
        return f"{number:08x}"

    def _claimed_key(self, token: str) -> bytes:
        """Return the key that a token says it was signed with, which nobody has checked yet."""
        unverified = self._unverified(token)
        found = _guarded(lambda: unverified.block_source(0), "its first block cannot be read")
        public = _unpacked(_FIRST, found).get("key")
        if not isinstance(public, str) or not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", public):
            raise _bad("it does not say which key signed it")
        return bytes.fromhex(public)

    def _unverified(self, token: str) -> Any:
        if not 0 < len(token) <= MAX_CHARACTERS or not _TEXT.fullmatch(token):
            raise _bad("it is not text of the right length and letters")
        library = _library()
        return _guarded(lambda: library.UnverifiedBiscuit.from_base64(token), "it is no Biscuit token")

    def _verified(self, token: str, public: bytes) -> Any:
        self._unverified(token)
        library = _library()
        try:
            key = library.PublicKey.from_bytes(public, library.Algorithm.Ed25519)
            biscuit = _guarded(lambda: library.Biscuit.from_base64(token, key), "")
        except (Denied, ValueError):
            raise Denied("the grant's signature does not fit: it was changed", reason="tampered") from None
        # the key id is not signed, and one message can be written in several ways: only the way we write it counts
        if biscuit.to_base64() != token:
            raise Denied("the grant is not written the way it was signed", reason="tampered")
        return biscuit


def _credential(biscuit: Any, key: IssuerKey) -> Credential:
    if biscuit.block_count() > MAX_BLOCKS:
        raise _bad(f"it has more than {MAX_BLOCKS} blocks")
    first = _unpacked(_FIRST, biscuit.block_source(0))
    try:
        if first.keys() != {"grant", "key"} or first["key"] != key.public.hex():
            raise _bad("its first block is not a grant of the key that signed it")
        grant = read_grant(first["grant"])
        issued_until = grant.expires_at
        for number in range(1, biscuit.block_count()):
            if biscuit.block_external_key(number) is not None:
                raise _bad("it has a block of a third party")
            grant = read_narrowing(_unpacked(_LATER, biscuit.block_source(number))).of(grant)
    except (InvalidRequest, RecursionError) as error:
        raise _bad(str(error)) from None
    return Credential(grant, issued_until, key, tuple(biscuit.revocation_ids))


def _unpacked(shape: re.Pattern[str], source: str) -> dict[str, Any]:
    found = shape.fullmatch(source)
    if found is None:
        raise _bad("a block has something in it that is not ours")
    try:
        content = bytes.fromhex(found[1])
        form = json.loads(content)
        same = isinstance(form, dict) and canonical(form) == content
    except (ValueError, InvalidRequest, RecursionError):
        same = False
    if not same:
        raise _bad("a block is not canonical JSON")
    return dict(form)


def _bounded(token: str) -> str:
    if len(token) > MAX_CHARACTERS:
        raise InvalidRequest(
            f"the grant is longer than {MAX_CHARACTERS} characters", reason="too_large", fix="grant or narrow to less"
        )
    return token


def _guarded(read: Callable[[], Any], problem: str) -> Any:
    """Do what parses bytes of a stranger: whatever it throws, panics of the library included, is a bad token."""
    try:
        return read()
    except Exception:  # noqa: BLE001  the library's errors have no common base
        raise _bad(problem) from None
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise _bad(problem) from None
        raise


def _bad(problem: str) -> Denied:
    return Denied(f"the grant cannot be read: {problem}", reason="bad_token")


def _library() -> ModuleType:
    try:
        import biscuit_auth
    except ImportError:
        raise Unavailable(
            "signed grants need the package biscuit-python, which is not installed",
            reason="extra_missing",
            fix="pip install 'ringfence[law]', on Python 3.11 to 3.13",
        ) from None
    return biscuit_auth
