"""Checkpoints of a log in the text forms of C2SP (signed-note, tlog-checkpoint), which witnesses and log tools read."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, TypeAlias

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.evidence.merkle import HASH_BYTES

Sign: TypeAlias = Callable[[bytes], bytes]
Verify: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""Tells whether a signature holds, given the public key, the message and the signature."""

# The specification asks for at least 16; more than this only keeps a reader busy.
MOST_SIGNATURES: Final = 64
_ED25519: Final = b"\x01"
_PUBLIC_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\ud800-\udfff]")
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,15}")
_SIGNATURE_LINE: Final = re.compile("\u2014 ([^ +]+) ([A-Za-z0-9+/]+={0,2})")
_VERIFIER_KEY: Final = re.compile(r"([^ +]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/]+={0,2})")


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """The public half of an Ed25519 key and the name it signs under."""

    name: str
    public: bytes

    def __post_init__(self) -> None:
        """Refuse a name that a signature line could not carry, and what is no Ed25519 key."""
        if not self.name or _CONTROL.search(self.name) or any(one.isspace() or one == "+" for one in self.name):
            raise _malformed("the name of a key is empty, or holds a blank or a plus sign")
        if len(self.public) != _PUBLIC_BYTES:
            raise _malformed("an Ed25519 public key has 32 bytes")

    @property
    def key_id(self) -> bytes:
        """The four bytes that a signature line names the key by."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def text(self) -> str:
        """Write it as `<name>+<key id>+<key>`."""
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(_ED25519 + self.public)}"

    @classmethod
    def parse(cls, text: str) -> VerifierKey:
        """Read what `text` wrote, and nothing else.

        Raises:
            InvalidRequest: It is no key in this form, not one for Ed25519, or its id is not that of the key.
        """
        match = _VERIFIER_KEY.fullmatch(text)
        encoded = decode_base64(match[3]) if match else None
        if match is None or encoded is None:
            raise _malformed("a verifier key reads <name>+<key id>+<base64>")
        if encoded[:1] != _ED25519:
            raise _malformed("this verifier key is not one for Ed25519")
        key = cls(match[1], encoded[1:])
        if key.key_id.hex() != match[2]:
            raise _malformed("the key id of this verifier key is not that of its name and key")
        return key


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a log that is signed: whose log, how many records, and the root of the tree over them."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what has no text form."""
        if any(not line or "\n" in line or _CONTROL.search(line) for line in (self.origin, *self.extensions)):
            raise _malformed("a line of a checkpoint is empty or holds a control character")
        if not _SIZE.fullmatch(str(self.size)) or len(self.root) != HASH_BYTES:
            raise _malformed("a checkpoint has a size and a root of 32 bytes")

    def text(self) -> str:
        """Write it as the text that is signed."""
        lines = (self.origin, str(self.size), encode_base64(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """Read what `text` wrote, and nothing else.

        Raises:
            InvalidRequest: It is not, byte for byte, the text of a checkpoint.
        """
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1]:
            raise _malformed("a checkpoint has at least three lines, each ended")
        origin, size, encoded, *extensions = lines[:-1]
        root = decode_base64(encoded)
        if root is None or not _SIZE.fullmatch(size):
            raise _malformed("the size or the root of a checkpoint cannot be read")
        return cls(origin, int(size), root, tuple(extensions))


@dataclass(frozen=True, slots=True)
class OpenedNote:
    """A text, and those of the keys asked about that did sign it."""

    text: str
    signers: tuple[VerifierKey, ...]


_SIGNATURE: Final = "\u2014 "


def log_origin(log_id: str) -> str:
    """Return the first line of every checkpoint of a log, which keeps one log's checkpoint from serving another."""
    return f"ringfence/{log_id}"


def sign_note(text: str, name: str, public: bytes, sign: Sign) -> str:
    """Return the text as a note signed by one key.

    Raises:
        InvalidRequest: The text or the name cannot be carried by a note.
    """
    if not text.endswith("\n") or _CONTROL.search(text):
        raise _malformed("the text of a note ends with a line feed, and holds no other control character")
    key = VerifierKey(name, public)
    return f"{text}\n\u2014 {name} {encode_base64(key.key_id + sign(text.encode()))}\n"


def read_note(note: str) -> tuple[str, list[tuple[str, bytes, bytes]]]:
    """Return a note's text, and the name, key id and signature of each signature line; nothing is verified here.

    Raises:
        InvalidRequest: It is not, byte for byte, a note.
    """
    # the text may hold empty lines: the last one separates
    text, separator, tail = note.rpartition("\n\n")
    lines = tail.split("\n")
    if not separator or _CONTROL.search(note) or lines.pop() or not 0 < len(lines) <= MOST_SIGNATURES:
        raise _malformed("a note is text, an empty line and signature lines")
    signatures: list[tuple[str, bytes, bytes]] = []
    for line in lines:
        match = _SIGNATURE_LINE.fullmatch(line)
        decoded = decode_base64(match[2]) if match else None
        if match is None or decoded is None or len(decoded) <= 4 or any(one.isspace() for one in match[1]):
            raise _malformed("a signature line of a note cannot be read")
        signatures.append((match[1], decoded[:4], decoded[4:]))
    return f"{text}\n", signatures


def split_notes(content: str) -> list[str]:
    """Return the notes of a file that collects them, one after the other.

    Raises:
        InvalidRequest: It does not end with a signature; whether each is a note is found out by whoever opens it.
    """
    notes: list[str] = []
    note: list[str] = []
    is_signed = False
    for line in content.splitlines(keepends=True):
        # after its signatures, an empty line or the next text ends a note
        if is_signed and not line.startswith(_SIGNATURE):
            notes.append("".join(note))
            note, is_signed = [], False
        if note or line.strip():
            note.append(line)
        is_signed = is_signed or line.startswith(_SIGNATURE)
    if is_signed:
        notes.append("".join(note))
    elif note or not notes:
        raise _malformed("checkpoints are text, an empty line and signature lines, each")
    return notes


def open_note(note: str, keys: Iterable[VerifierKey], verify: Verify) -> OpenedNote:
    """Return the text of a note that at least one of these keys signed; lines of other keys are passed over.

    Raises:
        InvalidRequest: It is no note (`bad_note`), none of the keys signed it (`unknown_signer`), or a line that names
            one of the keys does not verify (`bad_signature`).
    """
    text, signatures = read_note(note)
    known = {(key.name, key.key_id): key for key in keys}
    message = text.encode()
    signers: dict[VerifierKey, None] = {}
    for name, key_id, signature in signatures:
        key = known.get((name, key_id))
        if key is None:
            continue
        if len(signature) != _SIGNATURE_BYTES or not verify(key.public, message, signature):
            raise InvalidRequest(f"the signature of {name} does not hold for this text", reason="bad_signature")
        signers[key] = None
    if not signers:
        raise InvalidRequest("no key that is known here signed this note", reason="unknown_signer")
    return OpenedNote(text, tuple(signers))


def encode_base64(content: bytes) -> str:
    """Write bytes as RFC 4648 says."""
    return base64.b64encode(content).decode()


def decode_base64(text: str) -> bytes | None:
    """Read what `encode_base64` wrote; nothing comes of any other text."""
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    # bits beyond the last byte would give one content a second text
    return decoded if encode_base64(decoded) == text else None


def _malformed(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="bad_note")
