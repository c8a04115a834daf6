"""The key that signs the checkpoints of every log in a home, and the keys that somebody outside trusts."""

from __future__ import annotations

import contextlib
import hmac
import os
from pathlib import Path
from typing import Final, NoReturn

from ringfence.crypto import ed25519
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence.note import Checkpoint, VerifierKey, decode_base64, encode_base64, sign_note
from ringfence.private_files import create_file, private_directory, read_file

KEY_FILE: Final = "signer.key"
_PREFIX: Final = "PRIVATE+KEY"
_ED25519: Final = b"\x01"
_MOST_BYTES: Final = 4096
_MOST_TRUSTED_BYTES: Final = 1 << 16


class Signer:
    """The evidence key of one home, whose private half no repr, pickle or error shows."""

    __slots__ = ("_mac", "_seed", "key")

    def __init__(self, seed: bytes) -> None:
        """Take the private half; the name follows from the key, so no two homes sign under one name.

        Raises:
            Unavailable: This machine cannot compute Ed25519.
        """
        public = ed25519.public_key(seed)
        self.key = VerifierKey(f"ringfence/{public[:4].hex()}", public)
        self._seed = seed
        mac_key = hmac.digest(seed, b"ringfence: who wrote this record", "sha256")
        self._mac = hmac.new(mac_key, digestmod="sha256")

    @classmethod
    def in_home(cls, home: Path) -> Signer:
        """Return the signer of a home, made when there is none; processes that make one at once agree on it.

        Raises:
            Unavailable: Others could read or replace the key, it is damaged, or it cannot be written.
        """
        try:
            with private_directory(_directory(home), make=True) as directory:
                with contextlib.suppress(FileNotFoundError):
                    return _read(directory)
                # where another process was first, its key is the home's
                with contextlib.suppress(FileExistsError):
                    create_file(directory, KEY_FILE, cls(os.urandom(ed25519.SEED_BYTES))._written())
                return _read(directory)
        except OSError as error:
            raise Unavailable(
                f"the evidence key cannot be stored in {_directory(home)}: {error.strerror}",
                fix="make room on that disk, or make it writable",
            ) from error

    @property
    def name(self) -> str:
        """The name that its signature lines carry."""
        return self.key.name

    @property
    def vkey(self) -> str:
        """The public half in the form that is given to who verifies."""
        return self.key.text()

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message."""
        return ed25519.sign(self._seed, message)

    def mac(self, written: bytes) -> bytes:
        """Return what shows later processes of this home that one of them wrote what no checkpoint covers.

        Of a record that is its hash, and of what is only noted a text, which is longer than any hash.
        """
        mac = self._mac.copy()  # beginning with the key each time looks its algorithm up each time
        mac.update(written)
        return mac.digest()

    def wrote(self, written: bytes, mac: bytes) -> bool:
        """Tell whether a note, or a record and so every record it is linked to, is from the key of this home."""
        return hmac.compare_digest(self.mac(written), mac)

    def sign_checkpoint(self, checkpoint: Checkpoint) -> str:
        """Return a checkpoint as a signed note."""
        return sign_note(checkpoint.text(), self.key.name, self.key.public, self.sign)

    def _written(self) -> bytes:
        # the form in which the tools for signed notes keep a private key
        encoded = encode_base64(_ED25519 + self._seed)
        return f"{_PREFIX}+{self.key.name}+{self.key.key_id.hex()}+{encoded}\n".encode()

    def __repr__(self) -> str:
        return f"Signer({self.key.name})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an evidence key does not leave the process")


def key_in_home(home: Path) -> VerifierKey | None:
    """Return the public half of a home's evidence key, or nothing where none was made; nothing is made here.

    Raises:
        Unavailable: Others could read or replace the key, or it is damaged.
    """
    try:
        with private_directory(_directory(home), make=False) as directory:
            return _read(directory).key
    except FileNotFoundError:
        return None


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Tell whether a signature holds."""
    return ed25519.verify(public, message, signature)


def trusted_keys(given: str) -> tuple[VerifierKey, ...]:
    """Return the keys somebody trusts: one written out, or a file with one a line (empty lines and `#` aside).

    Raises:
        InvalidRequest: It is neither.
    """
    try:
        return (VerifierKey.parse(given),)
    except InvalidRequest as problem:
        refused = problem
    try:
        with Path(given).open("rb") as file:
            content = file.read(_MOST_TRUSTED_BYTES + 1)
    except (OSError, ValueError):
        raise InvalidRequest(
            f"{given[:100]!r} is neither a verifier key nor a file of them: {refused}", reason="bad_note"
        ) from None
    lines = [line.strip() for line in content.decode(errors="replace").splitlines()]
    keys = tuple(VerifierKey.parse(line) for line in lines if line and not line.startswith("#"))
    if not keys or len(content) > _MOST_TRUSTED_BYTES:
        raise InvalidRequest(f"the file {given[:100]!r} holds no verifier key, or far too much", reason="bad_note")
    return keys


def _directory(home: Path) -> Path:
    return home / "evidence"


def _read(directory: int) -> Signer:
    content = read_file(directory, KEY_FILE, _MOST_BYTES)
    encoded = content.decode(errors="replace").rstrip("\n").split("+", 4)[-1]
    decoded = decode_base64(encoded) or b""
    if len(decoded) == len(_ED25519) + ed25519.SEED_BYTES:
        signer = Signer(decoded[1:])
        # also compares name and key id: a key of another home that was renamed would sign under a wrong name
        if signer._written() == content:
            return signer
    raise Unavailable(
        f"the evidence key {KEY_FILE} is damaged",
        reason="key_store_unsafe",
        fix="restore it; a new key cannot prove what the old one signed",
    )
