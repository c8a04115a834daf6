"""How a call asks for a secret: by its name, by which way, and as what it is to be seen in the box."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.pattern import pattern

MOST_ASKED: Final = 32
_NAME: Final = pattern(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z", re.ASCII)
_LASTING: Final = "@conversation"
_ONCE: Final = "@task"
_LABEL: Final = pattern(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z", re.ASCII)


_REFERENCE: Final = pattern(r"\$\{secret:([A-Za-z_][A-Za-z0-9_.-]{0,63})\}", re.ASCII)


class Way(StrEnum):
    """How a secret reaches what needs it."""

    BROKER = "broker"
    """It never enters the box: the proxy puts it into requests for the hosts it is bound to."""
    ENV = "env"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class SecretAsk:
    """What a call asks of one secret."""

    name: str
    way: Way = Way.BROKER
    seen_as: str = ""
    """The variable's or the file's name; without one it is the secret's own."""
    lasting: bool = False
    """Whether it is to stay within reach for the whole conversation, and not for this run alone."""

    @property
    def label(self) -> str:
        """What the box knows it by."""
        return self.seen_as or self.name

    def __str__(self) -> str:
        """Return it as `read_ask` reads it."""
        how = "" if self.way is Way.BROKER and not self.seen_as else f"={self.way}"
        seen = f":{self.seen_as}" if self.seen_as else ""
        return f"{self.name}{how}{seen}{_LASTING if self.lasting else ''}"


def read_ask(text: object) -> SecretAsk:
    """Read `NAME`, `NAME=broker:VARIABLE`, `NAME=env`, `NAME=env:VARIABLE` or `NAME=file:name`.

    Behind it `@task` or `@conversation` says for how long.

    Raises:
        InvalidRequest: It is none of these.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"a secret is asked for by its name, not {type(text).__name__}", reason="invalid_secret")
    lasting = text.endswith(_LASTING)
    text = text.removesuffix(_LASTING) if lasting else text.removesuffix(_ONCE)
    name, given, how = text.partition("=")
    check_secret_name(name)
    if not given:
        return SecretAsk(name, lasting=lasting)
    way, colon, label = how.partition(":")
    if way not in tuple(Way) or how == Way.BROKER or bool(colon) is not bool(_LABEL.match(label)):
        raise InvalidRequest(
            f"secret {name}: it cannot be given as {how[:50]!r}",
            reason="invalid_secret",
            fix=f"write {name}, {name}=broker:VARIABLE, {name}=env, {name}=env:VARIABLE or {name}=file:name",
        )
    if not label and not _LABEL.match(name):
        raise InvalidRequest(
            f"secret {name}: nothing in a box can be called that",
            reason="invalid_secret",
            fix=f"write {name}={way}:NAME",
        )
    return SecretAsk(name, Way(way), label, lasting)


def references(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the secrets that header values ask for, as `${secret:NAME}`, each once."""
    return tuple(dict.fromkeys(name for value in headers.values() for name in _REFERENCE.findall(value)))


def put_in(text: str, values: Mapping[str, str]) -> str:
    """Return a header's value with the secrets in the places of their references."""
    return _REFERENCE.sub(lambda found: values[found[1]], text)


def check_secret_name(name: object) -> str:
    """Refuse what can be no secret's name.

    Raises:
        InvalidRequest: It is not 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter or '_'.
    """
    if not isinstance(name, str) or _NAME.match(name) is None:
        raise InvalidRequest(
            f"{str(name)[:100]!a} is no name of a secret: 1 to 64 letters, digits, '_', '.' or '-'",
            reason="invalid_secret",
        )
    return name
