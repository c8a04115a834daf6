"""Puts a secret into a request in the place of what a guest holds instead of it, and takes it out of the answer again.

A guest holds a placeholder: text without meaning, of its own run. Where it goes is judged by the same rules as any
request, and then by the secret's own bindings; a placeholder that turns up anywhere else is refused, so that a program
which leads it astray is told, although nothing was lost.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ringfence.dataclass import dataclass, field, replace
from ringfence.egress.proxy.messages import Fields, Request, Response
from ringfence.egress.proxy.refusal import BAD_GATEWAY, FORBIDDEN, Refusal
from ringfence.masking import Masks
from ringfence.operation.target import Target

_BASIC: Final = re.compile(r"(?i:basic) +([A-Za-z0-9+/]+={0,2})\Z")
# a part of an answer may hold a part of a value, and what is compressed hides it
_ASKS_FOR_PIECES: Final = frozenset({"range", "if-range", "accept-encoding"})
_PARTIAL: Final = 206


@dataclass(frozen=True, slots=True)
class Loan:
    """One secret that the requests of one run may carry; its text form has no value."""

    name: str
    placeholder: str
    value: str = field(repr=False)
    is_bound: Callable[[Target], bool] = field(repr=False)
    """Whether exactly one of its bindings is for that endpoint."""
    is_known_to: Callable[[str], bool] = field(repr=False)
    """Whether any of its bindings is for that host, on whatever port."""
    is_valid: Callable[[], bool] = field(repr=False)
    """Whether it may be used at this moment; may block."""
    masks: Masks = field(repr=False)
    """What puts the placeholder in the place of every spelling of the value."""


class Swap:
    """The secrets of one run."""

    def __init__(self, loans: Iterable[Loan] = ()) -> None:
        """`loans` have different placeholders."""
        self._loans = {loan.placeholder: loan for loan in loans}
        words = sorted(map(re.escape, self._loans))
        self._pattern = re.compile("|".join(words)) if words else None

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return self._pattern is not None

    def asked(self, request: Request, where: Target) -> Loan | None:
        """Return the secret that a request is to carry, which has been judged otherwise.

        Raises:
            Refusal: It may not carry it there, or in that place, or carries several.
        """
        found = {loan.name: loan for text in _texts(request.fields) for loan in self._in(text)}
        astray = self._in("\n".join((request.method, request.target, *(name for name, _ in request.fields))))
        for loan in astray:
            raise _refused(loan, "is put into the value of a header, and into nothing else")
        if len(found) > 1:
            raise _refused(next(iter(found.values())), "may not be in one request with another")
        for loan in found.values():
            if where.scheme != "https":
                raise _refused(loan, "is put into nothing that can be read on its way; use https")
            if not loan.is_bound(where):
                raise _refused(loan, f"is not bound to {where.host} by exactly one of its hosts")
            return loan
        return None

    def require_absent(self, text: bytes) -> None:
        """Refuse a piece of a body that holds a placeholder.

        Raises:
            Refusal: It does.
        """
        for loan in self._in(text.decode("latin-1")):
            raise _refused(loan, "is put into the value of a header, and not into what follows")

    def watch(self) -> Watch:
        """Return what looks at one body, piece by piece."""
        return Watch(self, max(map(len, self._loans), default=1) - 1)

    def known_to(self, host: str) -> tuple[Loan, ...]:
        """Return the secrets that a host may know, and say: on another port too, and in the clear."""
        return tuple(loan for loan in self._loans.values() if loan.is_known_to(host))

    def _in(self, text: str) -> Sequence[Loan]:
        return () if self._pattern is None else [self._loans[each] for each in self._pattern.findall(text)]


class Watch:
    """Looks for placeholders in a stream, however it is cut."""

    def __init__(self, swap: Swap, most: int) -> None:
        """Keep `most` bytes of what came: one less than the longest placeholder has."""
        self._swap, self._most = swap, most
        self._held = b""

    def see(self, data: bytes) -> bytes:
        """Return `data`, in which nothing is found.

        Raises:
            Refusal: There is a placeholder in what has come.
        """
        self._held += data
        self._swap.require_absent(self._held)
        self._held = self._held[-self._most :] if self._most else b""
        return data


def carrying(request: Request, loan: Loan) -> Request:
    """Return the request with the value in the place of every placeholder of it."""
    return replace(request, fields=tuple((name, _filled(value, loan)) for name, value in request.fields))


def asking_for_all(request: Request) -> Request:
    """Return the request without what would bring an answer in pieces, or compressed."""
    kept = tuple(each for each in request.fields if each[0].lower() not in _ASKS_FOR_PIECES)
    return replace(request, fields=(*kept, ("Accept-Encoding", "identity")))


def hidden(response: Response, loans: Iterable[Loan]) -> Response:
    """Return the head of an answer without the values.

    Raises:
        Refusal: What follows it could not be looked through.
    """
    codings = [value.lower() for name, value in response.fields if name.lower() == "content-encoding"]
    if any(coding != "identity" for coding in codings):
        raise Refusal(BAD_GATEWAY, "encoded", "the host knows a secret, and its answer is compressed unasked")
    if response.status == _PARTIAL:
        raise Refusal(BAD_GATEWAY, "encoded", "the host knows a secret, and its answer is a part of one")
    phrase, fields = response.phrase, response.fields
    for loan in loans:
        phrase = _masked(phrase, loan)
        fields = tuple((_masked(name, loan), _masked(value, loan)) for name, value in fields)
    return replace(response, phrase=phrase, fields=fields)


def _masked(text: str, loan: Loan) -> str:
    return loan.masks.whole(text.encode("latin-1")).decode("latin-1")


def _texts(fields: Fields) -> Iterable[str]:
    """Return the values of headers, and what a client has put together for Basic authentication."""
    for _, value in fields:
        yield value
        plain = _plain_basic(value)
        if plain is not None:
            yield plain


def _filled(value: str, loan: Loan) -> str:
    plain = _plain_basic(value)
    if plain is not None and loan.placeholder in plain:
        filled = plain.replace(loan.placeholder, loan.value).encode("latin-1")
        return f"Basic {base64.standard_b64encode(filled).decode()}"
    return value.replace(loan.placeholder, loan.value)


def _plain_basic(value: str) -> str | None:
    found = _BASIC.match(value)
    if found is None:
        return None
    try:
        return base64.b64decode(found[1], validate=True).decode("latin-1")
    except binascii.Error:
        return None


def _refused(loan: Loan, why: str) -> Refusal:
    return Refusal(FORBIDDEN, "secret", f"the secret {loan.name} {why}", secret=loan.name)
