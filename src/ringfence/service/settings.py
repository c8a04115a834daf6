"""How a service is to run: `[server]` and `[sandbox]` of a configuration file, with the environment above it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ringfence.authority import units
from ringfence.authority.levels import NetMode
from ringfence.authority.profile import Isolation
from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest

_OF_THE_HOME: Final = ("docker", "evidence", "grants", "net", "workspace")
OTHER_SECTIONS: Final = (*_OF_THE_HOME, "observe")
"""Sections of the file that other parts read."""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}\Z")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?\Z")
_HEX_ADDRESS = re.compile(r"[0-9a-fA-F:]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What a service is made from; parsed once, at the edge."""

    host: str = "127.0.0.1"
    port: int = 8321
    policy: str | None = None
    database: str | None = None
    skills: str | None = None
    queue_size: int = 256
    """How many executions may wait before the next is told to come back later."""
    drain_seconds: float = 30.0
    """How long what runs may go on once the service is told to end."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    read_seconds: float = 20.0
    """How long a request may take to arrive."""
    write_seconds: float = 60.0
    """How long a client may leave an answer unread."""
    keep_alive_seconds: float = 30.0
    max_connections: int = 4096
    aio: bool = False
    """Whether clients of AIO sandboxes are served too, under `/v1`."""
    cors_origins: tuple[str, ...] = ()
    """Web pages that may call; none unless somebody asked for it."""
    allowed_hosts: tuple[str, ...] = ()
    """Names this service is called by, beside those of the address it listens on."""
    workspace_root: str | None = None
    workspace_root_win: str | None = None
    workspace_root_wsl: str | None = None
    max_concurrent_execs: int = 4
    max_concurrent_per_tenant: int = 0
    """0 is no bound of its own, here and below."""
    max_concurrent_per_user: int = 0
    max_concurrent_per_space: int = 0
    pool_size: int | None = None
    isolation: str | None = None
    """The kind of box for every run, where it is not to be the first that starts."""
    max_memory: int | None = None
    """The most memory of any run, in bytes."""
    max_cpu: float | None = None
    network: str | None = None
    """The most network of any run."""

    def ceilings(self) -> dict[str, float]:
        """Return what no run gets more of, whatever the policy says."""
        said = {"memory_bytes": self.max_memory, "cpus": self.max_cpu}
        return {name: most for name, most in said.items() if most is not None}

    def require_rules_for_network(self) -> None:
        """Refuse a network that nobody has said the bounds of.

        Raises:
            InvalidRequest: More than none is asked for, and there is no policy.
        """
        if self.network not in (None, str(NetMode.NONE)) and self.policy is None:
            raise _wrong("the settings", "sandbox.network", f"{self.network} needs a policy that says which hosts")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK


def usual_settings(cores: int | None = None) -> ServiceSettings:
    """Return the defaults on a machine with so many cores (S3-65)."""
    return ServiceSettings(max_concurrent_execs=2 if (cores or os.cpu_count() or 1) <= 2 else 4)


def read_settings(path: Path, *, must_exist: bool, environment: Mapping[str, str]) -> ServiceSettings:
    """Return what the file says, the environment above it, and the defaults below.

    Raises:
        InvalidRequest: The file cannot be read, or says something nobody knows; the message names the place.
    """
    import tomllib

    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise InvalidRequest(f"{path} is not there", reason="invalid_config") from None
        written = {}
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", reason="invalid_config") from None
    for section in _OF_THE_HOME:
        if must_exist and section in written:
            raise _wrong(str(path), section, "belongs into the home's config.toml, which every run of the home reads")
    return settings_from(written, str(path), environment)


def settings_from(written: Mapping[str, Any], place: str, environment: Mapping[str, str]) -> ServiceSettings:
    """Return the settings of a file that was read; see `read_settings`."""
    found: dict[str, Any] = {}
    for section, entries in written.items():
        if section in OTHER_SECTIONS:
            continue
        if section not in _SECTIONS:
            raise _wrong(place, section, f"there is no such section; known: {', '.join((*_SECTIONS, *OTHER_SECTIONS))}")
        if not isinstance(entries, Mapping):
            raise _wrong(place, section, "must be a section")
        known = _SECTIONS[section]
        for name, value in entries.items():
            if name not in known:
                raise _wrong(place, f"{section}.{name}", f"there is no such key; known: {', '.join(known)}")
            found[name] = known[name].read(value, partial(_wrong, place, f"{section}.{name}"))
    for section, known in _SECTIONS.items():
        for name, kind in known.items():
            for variable in (f"{section}_{name}".upper(), f"RINGFENCE_{section}_{name}".upper()):
                text = environment.get(variable, "").strip()
                if text and (variable.startswith("RINGFENCE_") or variable in _WITHOUT_PREFIX):
                    found[name] = kind.read(kind.parse(text), partial(_wrong, "the environment", variable))
    return replace(usual_settings(), **found)


class _Kind(NamedTuple):
    """How one setting is written."""

    read: Callable[[Any, Callable[[str], InvalidRequest]], Any]
    parse: Callable[[str], Any]


def _number(least: float, most: float, *, whole: bool = True) -> _Kind:
    words = f"must be a {'whole ' if whole else ''}number from {least} to {most}"

    def read(value: Any, wrong: Callable[[str], InvalidRequest]) -> Any:
        kinds = (int,) if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
            raise wrong(f"{words}, not {value!r}")
        return value if whole else float(value)

    def parse(text: str) -> Any:
        try:
            return int(text) if whole else float(text)
        except ValueError:
            return text

    return _Kind(read, parse)


def _text(accept: Callable[[str], bool], words: str) -> _Kind:
    def read(value: Any, wrong: Callable[[str], InvalidRequest]) -> Any:
        if not isinstance(value, str) or not value or not value.isprintable() or not accept(value):
            raise wrong(f"must be {words}, not {value!r}")
        return value

    return _Kind(read, str)


def _list(accept: Callable[[str], bool], words: str) -> _Kind:
    def read(value: Any, wrong: Callable[[str], InvalidRequest]) -> Any:
        if not isinstance(value, list) or len(value) > 64 or not all(isinstance(one, str) for one in value):
            raise wrong(f"must be a list of {words}")
        for one in value:
            if not accept(one):
                raise wrong(f"must be a list of {words}; {one[:100]!r} is none")
        return tuple(dict.fromkeys(value))

    return _Kind(read, lambda text: [word.strip() for word in text.split(",") if word.strip()])


def _flag() -> _Kind:
    def read(value: Any, wrong: Callable[[str], InvalidRequest]) -> Any:
        if not isinstance(value, bool):
            raise wrong(f"must be true or false, not {value!r}")
        return value

    return _Kind(read, lambda text: {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text))


def _is_host(text: str) -> bool:
    return _HOST.match(text) is not None and (":" not in text or _HEX_ADDRESS.match(text) is not None)


def _size(value: Any, wrong: Callable[[str], InvalidRequest]) -> int:
    try:
        return units.size(value)
    except InvalidRequest as error:
        raise wrong(f"{error}") from None


_NETWORKS: Final = tuple(str(mode) for mode in NetMode)
_ISOLATIONS: Final = tuple(str(kind) for kind in Isolation)
_SIZE: Final = _Kind(_size, str)
_WITHOUT_PREFIX: Final = frozenset({"SANDBOX_POOL_SIZE", "SANDBOX_MAX_MEMORY", "SANDBOX_MAX_CPU", "SANDBOX_NETWORK"})
"""The variables that a compose file of the source documents sets; ours, with the prefix, stand above them."""
_FLAG: Final = _flag()
_PATH: Final = _text(lambda text: text.startswith(("/", "~")), "an absolute path")
_SECTIONS: Final[Mapping[str, Mapping[str, _Kind]]] = {
    "server": {
        "host": _text(_is_host, "an address or a name"),
        "port": _number(0, 65535),
        "policy": _text(lambda _: True, "a path"),
        "database": _text(lambda text: text.startswith(("postgresql://", "postgres://")), "a postgresql:// address"),
        "skills": _text(lambda _: True, "a path"),
        "queue_size": _number(1, 100_000),
        "drain_seconds": _number(0, 3600, whole=False),
        "max_body_bytes": _number(1024, 1 << 30),
        "max_header_bytes": _number(1024, 1 << 20),
        "read_seconds": _number(0.1, 3600, whole=False),
        "write_seconds": _number(0.1, 3600, whole=False),
        "keep_alive_seconds": _number(0.1, 3600, whole=False),
        "max_connections": _number(1, 1_000_000),
        "aio": _FLAG,
        "cors_origins": _list(lambda text: _ORIGIN.match(text) is not None, "origins such as https://example.org"),
        "allowed_hosts": _list(_is_host, "host names"),
    },
    "sandbox": {
        "workspace_root": _PATH,
        "workspace_root_win": _text(lambda _: True, "a path"),
        "workspace_root_wsl": _PATH,
        "max_concurrent_execs": _number(1, 1024),
        "max_concurrent_per_tenant": _number(0, 1024),
        "max_concurrent_per_user": _number(0, 1024),
        "max_concurrent_per_space": _number(0, 1024),
        "pool_size": _number(0, 1024),
        "isolation": _text(lambda text: text in _ISOLATIONS, f"one of {', '.join(_ISOLATIONS)}"),
        "max_memory": _SIZE,
        "max_cpu": _number(0.01, 1024, whole=False),
        "network": _text(lambda text: text in _NETWORKS, f"one of {', '.join(_NETWORKS)}"),
    },
}


def _wrong(place: str, key: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"{place}, {key}: {fault}", reason="invalid_config", fix=f"correct {key}, or leave it out")
