"""Issuer keys on disk: a new one signs at once, the old ones go on verifying until their own time is over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from ringfence.authority.issuer_key import KEY_BYTES, IssuerKey, SigningKey, key_id_of
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.grants.revocations import RevocationFile
from ringfence.ports import Clock, GrantCodec
from ringfence.private_files import (
    create_file,
    list_names,
    private_directory,
    private_directory_if_any,
    read_file,
    remove_file,
)

DEFAULT_VALIDITY_MS: Final = 90 * 24 * 3600 * 1000
_ID = re.compile(r"[0-9a-f]{8}")
_MOST_BYTES = 4096


class KeyRing:
    """The keys of one home; every question is answered from the disk, so that all its processes agree."""

    def __init__(self, home: Path, codec: GrantCodec, clock: Clock, revocations: RevocationFile) -> None:
        """Nothing is read or made yet."""
        self._path = home / "keys"
        self._codec = codec
        self._clock = clock
        self._revocations = revocations

    def create(self, *, valid_ms: int = DEFAULT_VALIDITY_MS) -> IssuerKey:
        """Make a key that signs from now on; keys made before keep verifying what they signed.

        Raises:
            Unavailable: The directory could be read or replaced by others.
        """
        # before the first key: a home with keys and without the list has lost it, and nothing is accepted there
        self._revocations.create()
        with private_directory(self._path, make=True) as directory:
            while True:
                secret, public = self._codec.new_key()
                now = self._clock.now_ms()
                key = IssuerKey(key_id_of(public), public, now, now + valid_ms)
                try:
                    create_file(directory, f"{key.key_id}.key", secret.hex().encode())
                except FileExistsError:  # ids are short: another key has this one
                    continue
                create_file(directory, f"{key.key_id}.json", _written(key))
                return key

    def list_keys(self) -> tuple[IssuerKey, ...]:
        """Return every key, oldest first.

        Raises:
            Unavailable: The directory or a file in it could be read or replaced by others, or is damaged.
        """
        with private_directory_if_any(self._path) as directory:
            if directory is None:
                return ()
            names = [name.removesuffix(".json") for name in list_names(directory) if name.endswith(".json")]
            found = [_read(directory, name) for name in names if _ID.fullmatch(name)]
        return tuple(sorted((key for key in found if key), key=lambda key: (key.not_before, key.key_id)))

    def find(self, key_id: str) -> IssuerKey | None:
        """Return the public half of a key, or nothing when it is not known here; raises what `list_keys` raises."""
        if not _ID.fullmatch(key_id):
            return None
        with private_directory_if_any(self._path) as directory:
            return None if directory is None else _read(directory, key_id)

    def signing_key(self) -> SigningKey:
        """Return the newest key that is valid now, not revoked and here with its private half.

        Raises:
            Unavailable: There is none, or the directory is not safe.
        """
        now = self._clock.now_ms()
        for key in reversed(self.list_keys()):
            if key.is_valid(now) and not self._revocations.is_key_revoked(key.key_id):
                secret = self._secret(key)
                if secret is not None:
                    return SigningKey(key, secret)
        raise Unavailable("no key may sign a grant now", reason="no_signing_key", fix="ringfence key create")

    def revoke(self, key_id: str) -> IssuerKey:
        """Distrust a key and everything it signed from this moment on, and remove its private half.

        Raises:
            InvalidRequest: There is no such key.
        """
        key = self.find(key_id)
        if key is None:
            raise InvalidRequest(
                f"there is no key {key_id[:100]!r}", reason="not_found", fix="see 'ringfence key list'"
            )
        self._revocations.revoke("key", key.key_id)
        with private_directory_if_any(self._path) as directory:
            if directory is not None:
                remove_file(directory, f"{key.key_id}.key")
        return key

    def _secret(self, key: IssuerKey) -> bytes | None:
        with private_directory_if_any(self._path) as directory:
            if directory is None:
                return None
            try:
                text = read_file(directory, f"{key.key_id}.key", _MOST_BYTES)
            except FileNotFoundError:
                return None
        try:
            secret = bytes.fromhex(text.decode("ascii"))
        except ValueError:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise _damaged(f"{key.key_id}.key")
        return secret


def _written(key: IssuerKey) -> bytes:
    form = {"public": key.public.hex(), "not_before": key.not_before, "expires_at": key.expires_at}
    return json.dumps(form).encode()


def _read(directory: int, key_id: str) -> IssuerKey | None:
    try:
        content = read_file(directory, f"{key_id}.json", _MOST_BYTES)
    except FileNotFoundError:
        return None
    try:
        form: Any = json.loads(content)
        key = IssuerKey(key_id, bytes.fromhex(form["public"]), form["not_before"], form["expires_at"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _damaged(f"{key_id}.json") from None
    times = (type(key.not_before), type(key.expires_at))
    # the name of a file must not decide which key a token is checked with
    if times != (int, int) or len(key.public) != KEY_BYTES or key_id_of(key.public) != key_id:
        raise _damaged(f"{key_id}.json")
    return key


def _damaged(name: str) -> Unavailable:
    return Unavailable(
        f"the key file {name} is damaged", reason="key_store_unsafe", fix="restore it, or remove it and make a new key"
    )
