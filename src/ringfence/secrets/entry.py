"""What is known of a secret beside its value: its name, where the value comes from, its ways and its hosts."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.operation.secret import Way, check_secret_name

MOST_HOSTS: Final = 32
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z", re.ASCII)
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63}){0,9}(:[0-9]{1,5})?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value is when it is not kept here: an `env` variable, a `file`, a `keyring`, a `vault`."""

    kind: str
    place: str = ""

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.kind}:{self.place}" if self.place else self.kind


KEPT: Final = Source("kept")


@dataclass(frozen=True, slots=True)
class Entry:
    """One secret of one tenant, without its value."""

    name: str
    source: Source = KEPT
    hosts: tuple[str, ...] = ()
    """Where the proxy may put it in."""
    ways: frozenset[Way] = frozenset({Way.BROKER})
    created_ms: int = 0
    version: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return it as lists and files have it."""
        return {
            "name": self.name,
            "source": str(self.source),
            "hosts": list(self.hosts),
            "ways": sorted(self.ways),
            "created_ms": self.created_ms,
            "version": self.version,
        }


def read_entry(text: bytes) -> Entry:
    """Read what `Entry.to_json` gave, from a file that was found whole.

    Raises:
        ValueError: It is something else.
    """
    form = json.loads(text)
    kind, _, place = form["source"].partition(":")
    return Entry(
        name=check_secret_name(form["name"]),
        source=Source(kind, place),
        hosts=tuple(form["hosts"]),
        ways=frozenset(Way(way) for way in form["ways"]),
        created_ms=int(form["created_ms"]),
        version=int(form["version"]),
    )


def check_hosts(hosts: object) -> tuple[str, ...]:
    """Refuse what the proxy could not hold a request against.

    Raises:
        InvalidRequest: Naming what is no host.
    """
    if not isinstance(hosts, list | tuple) or len(hosts) > MOST_HOSTS:
        raise InvalidRequest(f"hosts must be a list of at most {MOST_HOSTS}", reason="invalid_secret")
    for host in hosts:
        if not isinstance(host, str) or _HOST.match(host) is None:
            raise InvalidRequest(
                f"{str(host)[:100]!a} is no host such as api.example.org or *.example.org", reason="invalid_secret"
            )
    return tuple(dict.fromkeys(hosts))


def read_source(text: object) -> Source:
    """Read `env:NAME`, `file:/path`, `keyring:service/user` or `vault:path#field`.

    Raises:
        InvalidRequest: It is none of these.
    """
    kind, _, place = text.partition(":") if isinstance(text, str) else ("", "", "")
    good = {
        "env": _VARIABLE.match(place) is not None,
        "file": place.startswith("/") and place.isprintable(),
        "keyring": 0 < place.find("/") < len(place) - 1 and place.isprintable(),
        "vault": 0 < place.find("#") < len(place) - 1 and place.isprintable() and ".." not in place,
    }
    if not good.get(kind, False):
        raise InvalidRequest(
            f"{str(text)[:100]!a} is no source of a secret",
            reason="invalid_secret",
            fix="write env:NAME, file:/path, keyring:service/user or vault:path#field",
        )
    return Source(kind, place)
