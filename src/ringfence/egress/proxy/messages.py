"""Heads of HTTP messages: read strictly, and written anew, so that no two readers can see two different requests.

One connection carries one request. What a proxy passes on as it came, a server behind it may read as two (request
smuggling); here the request that was judged is the only one that can come out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.egress.proxy.refusal import BAD_GATEWAY, BAD_REQUEST, Refusal
from ringfence.errors import InvalidRequest
from ringfence.operation.target import Target, target

MOST_HEAD_BYTES: Final = 32 * 1024
MOST_FIELDS: Final = 100
END_OF_HEAD: Final = b"\r\n\r\n"

_SIGN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_NAME = rf"{_SIGN}+"
# a method is on record, refused or not: it must be too short to say anything
_REQUEST = re.compile(rf"({_SIGN}{{1,64}}) ([!-~]+) HTTP/1\.([01])\Z")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\Z")
# no space before the colon, no line that continues another, no control character
_FIELD = re.compile(rf"({_NAME}):([\t\x20-\x7e\x80-\xff]*)\Z")
_LENGTH = re.compile(r"[0-9]{1,15}\Z")
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}\Z")

# What is between two neighbours and never goes further (RFC 9110 §7.6.1), and what this proxy says itself.
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "te", "trailer", "upgrade", "proxy-connection"})
_OUR_OWN: Final = frozenset({"host", "content-length", "transfer-encoding", "expect"})

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Framing:
    """How the body of a request ends: after `length` bytes, or with its last chunk."""

    length: int = 0
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request, exactly one reading of it."""

    method: str
    target: str
    minor: int
    fields: Fields

    @property
    def expects_word(self) -> bool:
        """Whether the client waits to be told before it sends the body."""
        return any(value.lower() == "100-continue" for value in _values(self.fields, "expect"))

    @property
    def stays(self) -> bool:
        """Whether the client may send another request after this one."""
        said = {word.strip().lower() for value in _values(self.fields, "connection") for word in value.split(",")}
        return self.minor == 1 and "close" not in said

    def names(self, field: str) -> list[str]:
        """Return the values of a field, in order."""
        return _values(self.fields, field)


@dataclass(frozen=True, slots=True)
class Response:
    """The head of an answer."""

    status: int
    phrase: str
    fields: Fields


def read_request(head: bytes) -> Request:
    """Read the head of a request, up to and with the empty line.

    Raises:
        Refusal: Two readers could read it differently, or it is too long.
    """
    first, fields = _read(head, BAD_REQUEST)
    found = _REQUEST.match(first)
    if found is None:
        raise Refusal(BAD_REQUEST, "invalid", "the first line is not METHOD TARGET HTTP/1.1")
    return Request(found[1], found[2], int(found[3]), fields)


def read_response(head: bytes) -> Response:
    """Read the head of an answer.

    Raises:
        Refusal: It is none.
    """
    first, fields = _read(head, BAD_GATEWAY)
    found = _STATUS.match(first)
    if found is None:
        raise Refusal(BAD_GATEWAY, "answer", "the host does not answer in HTTP/1.1")
    if _values(fields, "transfer-encoding") and _values(fields, "content-length"):
        raise Refusal(BAD_GATEWAY, "answer", "the host says twice where its answer ends")
    return Response(int(found[1]), found[2] or "", fields)


def tunnel_target(request: Request) -> Target:
    """Return the host and port that a CONNECT asks for.

    Raises:
        Refusal: It names none, or not as every reader would.
    """
    if _AUTHORITY.match(request.target) is None:
        raise Refusal(BAD_REQUEST, "invalid", "CONNECT needs HOST:PORT")
    return _target(f"https://{request.target}")


def request_target(request: Request, tunnel: Target | None = None, scheme: str = "http") -> Target:
    """Return where a request goes: by its absolute URL, or to the host of the `tunnel` it came through.

    Raises:
        Refusal: The URL, the Host header and the tunnel do not all name one host.
    """
    if tunnel is None:
        if not request.target.startswith("http://"):
            raise Refusal(BAD_REQUEST, "invalid", "this is a proxy: it needs an absolute http:// URL, or CONNECT")
        where = _target(request.target)
    else:
        if not request.target.startswith("/"):
            raise Refusal(BAD_REQUEST, "invalid", "a request inside a tunnel begins with its path")
        where = _target(f"{Target(scheme, tunnel.host, tunnel.port, '/').origin}{request.target}")
    named = _values(request.fields, "host")
    if len(named) != 1:
        raise Refusal(BAD_REQUEST, "host_mismatch", "a request names its host exactly once")
    meant = _target(f"{scheme}://{named[0]}") if re.match(r"[^/?#]+\Z", named[0]) else None
    if meant is None or (meant.host, meant.port) != (where.host, where.port):
        raise Refusal(BAD_REQUEST, "host_mismatch", "the Host header names another host than the URL")
    return where


def framing_of(request: Request) -> Framing:
    """Return how the body ends.

    Raises:
        Refusal: It could be read in two ways (RFC 9112 §6.3).
    """
    lengths, codings = _values(request.fields, "content-length"), _values(request.fields, "transfer-encoding")
    if codings:
        if lengths or request.minor == 0 or [coding.lower() for coding in codings] != ["chunked"]:
            raise Refusal(BAD_REQUEST, "framing", "Transfer-Encoding must be chunked, alone, and without a length")
        return Framing(chunked=True)
    if not lengths:
        return Framing()
    if len(lengths) > 1 or _LENGTH.match(lengths[0]) is None:
        raise Refusal(BAD_REQUEST, "framing", "Content-Length must be one number")
    return Framing(length=int(lengths[0]))


def forwarded(request: Request, where: Target, framing: Framing) -> bytes:
    """Return the head that goes to the host: what was judged, and nothing that was only between client and proxy."""
    lines = [f"{request.method} {where.path} HTTP/1.1", f"Host: {where.origin.partition('://')[2]}"]
    lines += [f"{name}: {value}" for name, value in _end_to_end(request.fields) if name.lower() not in _OUR_OWN]
    if framing.chunked:
        lines.append("Transfer-Encoding: chunked")
    elif framing.length or _values(request.fields, "content-length"):
        lines.append(f"Content-Length: {framing.length}")
    lines.append("Connection: close")
    return _written(lines)


def answered(response: Response) -> bytes:
    """Return the head that goes to the client; the body follows as it comes, until the connection ends."""
    lines = [f"HTTP/1.1 {response.status} {response.phrase}"]
    lines += [f"{name}: {value}" for name, value in _end_to_end(response.fields)]
    lines.append("Connection: close")
    return _written(lines)


def answer_framing(method: str, response: Response) -> Framing | None:
    """Return how the body of an answer ends; None where only the connection's end tells.

    Raises:
        Refusal: It could be read in two ways.
    """
    if method == "HEAD" or response.status in (204, 304):
        return Framing()
    lengths, codings = _values(response.fields, "content-length"), _values(response.fields, "transfer-encoding")
    if codings and [coding.lower() for coding in codings] != ["chunked"]:
        raise Refusal(BAD_GATEWAY, "answer", "the host codes its answer in a way that nobody asked for")
    if len(lengths) > 1 or (lengths and _LENGTH.match(lengths[0]) is None):
        raise Refusal(BAD_GATEWAY, "answer", "the host says twice where its answer ends")
    if not codings and not lengths:
        return None
    return Framing(int(lengths[0])) if lengths else Framing(chunked=True)


def retold(response: Response, framing: Framing | None, *, stays: bool) -> bytes:
    """Return the head of an answer whose body ends as `framing` says, after which the connection `stays`, or ends.

    Nothing of what the host said of its body is left, so that what was judged here is what the client reads.
    """
    lines = [f"HTTP/1.1 {response.status} {response.phrase}"]
    lines += [f"{name}: {value}" for name, value in _end_to_end(response.fields) if name.lower() not in _FRAMES]
    if framing is not None and response.status not in (204, 304):
        lines.append("Transfer-Encoding: chunked" if framing.chunked else f"Content-Length: {framing.length}")
    if not stays:
        lines.append("Connection: close")
    return _written(lines)


def answer_length(method: str, response: Response) -> int | None:
    """Return how long the body of an answer is; None where only its end tells."""
    if method == "HEAD" or response.status in (204, 304):
        return 0
    lengths = _values(response.fields, "content-length")
    return int(lengths[0]) if len(lengths) == 1 and _LENGTH.match(lengths[0]) else None


def _read(head: bytes, status: int) -> tuple[str, Fields]:
    if len(head) > MOST_HEAD_BYTES:
        raise Refusal(status, "too_large", f"a head has at most {MOST_HEAD_BYTES} bytes")
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    if len(lines) > MOST_FIELDS:
        raise Refusal(status, "too_large", f"a head has at most {MOST_FIELDS} fields")
    fields = []
    for line in lines:
        found = _FIELD.match(line)
        if found is None:
            raise Refusal(status, "invalid", "a header is not NAME: VALUE on one line")
        fields.append((found[1], found[2].strip("\t ")))
    return first, tuple(fields)


def _target(url: str) -> Target:
    try:
        return target(url)
    except InvalidRequest as error:
        raise Refusal(BAD_REQUEST, "invalid", str(error)) from None


def _values(fields: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in fields if each.lower() == name]


def _end_to_end(fields: Fields) -> Iterable[tuple[str, str]]:
    named = {word.strip().lower() for value in _values(fields, "connection") for word in value.split(",")}
    for name, value in fields:
        plain = name.lower()
        if plain not in _HOP_BY_HOP and not plain.startswith("proxy-") and (plain not in named or plain in _FRAMES):
            yield name, value


# What says where a body ends cannot be taken away by naming it in Connection.
_FRAMES: Final = frozenset({"transfer-encoding", "content-length"})


def _written(lines: list[str]) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
