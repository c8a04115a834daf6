"""A signed in-toto statement in its DSSE envelope, in the single spelling that we write and accept."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.evidence.note import Sign, VerifierKey, decode_base64, encode_base64

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"

# One signature, members in the order of RFC 8785, no blanks. Read by pattern and not as JSON, so that nothing which
# only means the same gets in, and a hostile file is never turned into objects before its form is known.
_ENVELOPE = re.compile(
    rb'\{"payload":"([A-Za-z0-9+/]*={0,2})","payloadType":"application/vnd\.in-toto\+json",'
    rb'"signatures":\[\{"keyid":"([0-9a-f]{64})","sig":"([A-Za-z0-9+/]{86}==)"\}\]\}'
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an envelope holds; nothing in it is verified yet."""

    payload: bytes
    key_id: str
    signature: bytes


def seal_envelope(payload: bytes, key: VerifierKey, sign: Sign) -> bytes:
    """Return the envelope of a payload signed with the private half of `key`."""
    signature = sign(signed_message(payload))
    return b'{"payload":"%b","payloadType":"%b","signatures":[{"keyid":"%b","sig":"%b"}]}' % (
        encode_base64(payload).encode(),
        PAYLOAD_TYPE.encode(),
        key_id_of(key).encode(),
        encode_base64(signature).encode(),
    )


def read_envelope(data: bytes) -> Envelope:
    """Return what an envelope of ours holds.

    Raises:
        InvalidRequest: It is not, byte for byte, an envelope as `seal_envelope` writes it.
    """
    found = _ENVELOPE.fullmatch(data)
    if found is None:
        raise _damaged()
    return Envelope(_decoded(found[1]), found[2].decode(), _decoded(found[3]))


def signed_message(payload: bytes) -> bytes:
    """Return what DSSE signs: payload and type, each with its length, so that neither can pass for the other."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id_of(key: VerifierKey) -> str:
    """Return the name an envelope has for a key: the SHA-256 of its text, so that it binds the key and its name."""
    return sha256(key.text().encode()).hexdigest()


def _decoded(text: bytes) -> bytes:
    decoded = decode_base64(text.decode("ascii"))
    if decoded is None:
        raise _damaged()
    return decoded


def _damaged() -> InvalidRequest:
    return InvalidRequest("this is not a bundle, or it was altered", reason="bundle_damaged")
