"""Who is told what the journal holds: the `observe` setting and its environment variables, read into one value."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
MOST_SINKS: Final = 16  # each has a thread and a queue of its own
_Words = TypeVar("_Words", bound=StrEnum)
_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


class SinkKind(StrEnum):
    """Where events can go."""

    FILE = "file"
    STDOUT = "stdout"
    WEBHOOK = "webhook"
    OTLP = "otlp"
    OTEL = "otel"
    """The OpenTelemetry that the application has set up in this process, wherever that sends what it is given."""


class Only(StrEnum):
    """Which records a sink is told of."""

    ALL = "all"
    VIOLATIONS = "violations"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """One place that is told; `path` for a file, `url` for a webhook or an OTLP collector."""

    kind: SinkKind
    path: str | None = None
    url: str | None = None
    only: Only = Only.ALL
    timeout_ms: int = 5_000
    max_bytes: int = 64 * 1024 * 1024
    keep: int = 5

    @property
    def name(self) -> str:
        """What tells this sink from the others, and finds its position again after a restart; it has no secret in it.

        The path of a webhook's URL is often its password, so of it only a fingerprint is kept.
        """
        if self.kind is SinkKind.FILE:
            return f"file:{self.path}"
        if self.url is not None:
            return f"{self.kind}:{_address(self.url)}#{_fingerprint(self.url)}"
        return str(self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings:
    """The whole setting; with `observe` off nothing leaves, whatever sinks it names (S0-7)."""

    observe: bool = True
    sinks: tuple[SinkSettings, ...] = ()
    checkpoints: tuple[SinkSettings, ...] = ()

    @property
    def active_sinks(self) -> tuple[SinkSettings, ...]:
        """The sinks that get records."""
        return self.sinks if self.observe else ()

    @property
    def active_checkpoints(self) -> tuple[SinkSettings, ...]:
        """The sinks that get copies of checkpoints."""
        return self.checkpoints if self.observe else ()


def read_settings(written: Any) -> ObserveSettings:
    """Return the setting as `{"observe": true, "sinks": [{"kind": …}, …], "checkpoints": [{"kind": …}, …]}`.

    Raises:
        InvalidRequest: It is not written so; the message names the place.
    """
    entries = _mapping(written, "observe", {"observe", "sinks", "checkpoints"})
    switch = entries.get("observe", True)
    if not isinstance(switch, bool):
        raise _wrong("observe", f"must be true or false, not {switch!r}")
    return _checked(
        ObserveSettings(
            observe=switch,
            sinks=_sinks(entries.get("sinks", []), "sinks", frozenset(SinkKind)),
            checkpoints=_sinks(
                entries.get("checkpoints", []), "checkpoints", frozenset(SinkKind) - {SinkKind.OTLP, SinkKind.OTEL}
            ),
        )
    )


def with_environment(settings: ObserveSettings, environment: Mapping[str, str]) -> ObserveSettings:
    """Return the settings with what the environment adds or switches.

    `RINGFENCE_OBSERVE=off|on` switches all of it; `RINGFENCE_WEBHOOK=<url>` adds an alert on violations;
    `RINGFENCE_CHECKPOINT_COPIES=stdout,file:<path>,<url>` adds places for checkpoints.

    Raises:
        InvalidRequest: A variable is not written so; the message names it.
    """
    switch = environment.get("RINGFENCE_OBSERVE", "").strip().lower()
    if switch and switch not in _SWITCH:
        raise _wrong("RINGFENCE_OBSERVE", f"must be on or off, not {switch!r}")
    webhook = environment.get("RINGFENCE_WEBHOOK", "").strip()
    alerts = [_sink({"kind": "webhook", "url": webhook, "only": "violations"}, "RINGFENCE_WEBHOOK")] if webhook else []
    copies = [
        _copy(word.strip()) for word in environment.get("RINGFENCE_CHECKPOINT_COPIES", "").split(",") if word.strip()
    ]
    return _checked(
        replace(
            settings,
            observe=_SWITCH[switch] if switch else settings.observe,
            sinks=_without_twins(*settings.sinks, *alerts),
            checkpoints=_without_twins(*settings.checkpoints, *copies),
        )
    )


def check_url(url: str, place: str) -> None:
    """Refuse a URL over which events could be read or redirected on the way.

    Raises:
        InvalidRequest: It is neither https nor on this machine, or holds a name and a password.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise _bad_url(place, "is not a URL") from None
    if not url.isascii() or not url.isprintable() or " " in url or not host:
        raise _bad_url(place, "is not a URL")
    if parts.username is not None or parts.password is not None:
        raise _bad_url(place, "must not hold a name or a password")
    if parts.fragment:
        raise _bad_url(place, "must not hold a fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOOPBACK):
        raise _bad_url(place, f"must begin with https:// unless it is on this machine: {host!r}")


def _sinks(written: Any, place: str, kinds: frozenset[SinkKind]) -> tuple[SinkSettings, ...]:
    if not isinstance(written, list | tuple):
        raise _wrong(place, "must be a list")
    sinks = [_sink(entry, f"{place}[{number}]") for number, entry in enumerate(written)]
    for number, sink in enumerate(sinks):
        if sink.kind not in kinds:
            raise _wrong(f"{place}[{number}].kind", f"cannot be {sink.kind.value!r} here")
        if place == "checkpoints" and sink.only is not Only.ALL:
            raise _wrong(f"{place}[{number}].only", "has no meaning for checkpoints")
    return _without_twins(*sinks)


def _sink(written: Any, place: str) -> SinkSettings:
    allowed = {"kind", "path", "url", "only", "timeout_ms", "max_bytes", "keep"}
    entries = _mapping(written, place, allowed)
    kind = _one_of(SinkKind, entries.get("kind"), f"{place}.kind")
    fits = {
        SinkKind.FILE: {"path", "max_bytes", "keep"},
        SinkKind.STDOUT: set(),
        SinkKind.WEBHOOK: {"url", "timeout_ms"},
        SinkKind.OTLP: {"url", "timeout_ms"},
        SinkKind.OTEL: set(),
    }[kind] | ({"kind"} if kind is SinkKind.OTEL else {"kind", "only"})
    for name in sorted(entries.keys() - fits):
        raise _wrong(f"{place}.{name}", f"has no meaning for a sink of kind {kind.value!r}")
    path, url = entries.get("path"), entries.get("url")
    if kind is SinkKind.FILE and (not isinstance(path, str) or not path.startswith("/") or "\0" in path):
        raise _wrong(f"{place}.path", "must be an absolute path")
    if kind in (SinkKind.WEBHOOK, SinkKind.OTLP):
        if not isinstance(url, str):
            raise _wrong(f"{place}.url", "is missing")
        check_url(url, f"{place}.url" if "[" in place else place)
    return SinkSettings(
        kind=kind,
        path=path,
        url=url,
        only=_one_of(Only, entries.get("only", "all"), f"{place}.only"),
        timeout_ms=_number(entries.get("timeout_ms", 5_000), f"{place}.timeout_ms", 1, 60_000),
        max_bytes=_number(entries.get("max_bytes", 64 * 1024 * 1024), f"{place}.max_bytes", 4_096, 2**40),
        keep=_number(entries.get("keep", 5), f"{place}.keep", 1, 100),
    )


def _copy(word: str) -> SinkSettings:
    place = "RINGFENCE_CHECKPOINT_COPIES"
    if word == "stdout":
        return _sink({"kind": "stdout"}, place)
    if word.startswith("file:"):
        return _sink({"kind": "file", "path": word.removeprefix("file:")}, place)
    if "://" in word:
        return _sink({"kind": "webhook", "url": word}, place)
    raise _wrong(place, f"must list stdout, file:/a/path or a URL, not {word!r}")


def _checked(settings: ObserveSettings) -> ObserveSettings:
    if len(settings.sinks) > MOST_SINKS or len(settings.checkpoints) > MOST_SINKS:
        raise _wrong("sinks", f"must be at most {MOST_SINKS}")
    return settings


def _without_twins(*sinks: SinkSettings) -> tuple[SinkSettings, ...]:
    """Drop what is there twice; two of one name would share a position, and one of them would miss records."""
    return tuple({sink.name: sink for sink in reversed(sinks)}.values())[::-1]


def _mapping(written: Any, place: str, allowed: set[str]) -> Mapping[str, Any]:
    if not isinstance(written, Mapping):
        raise _wrong(place, "must be a mapping")
    for name in written:
        if name not in allowed:
            raise _wrong(place, f"has no setting {name!r}; it knows {', '.join(sorted(allowed))}")
    return written


def _one_of(kind: type[_Words], written: Any, place: str) -> _Words:
    try:
        return kind(written)
    except ValueError:
        raise _wrong(place, f"must be one of {', '.join(kind)}, not {written!r}") from None


def _number(written: Any, place: str, least: int, most: int) -> int:
    if isinstance(written, bool) or not isinstance(written, int) or not least <= written <= most:
        raise _wrong(place, f"must be a whole number from {least} to {most}, not {written!r}")
    return written


def _address(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _fingerprint(url: str) -> str:
    from hashlib import sha256

    return sha256(url.encode()).hexdigest()[:12]


def _wrong(place: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"{place} {fault}", reason="invalid_value")


def _bad_url(place: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"{place} {fault}", reason="invalid_url")
