"""HTTP: a capability is a host or a suffix, the endpoints of it, and the methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ringfence.capability.host import above, host_pattern
from ringfence.capability.host import covers as host_covers
from ringfence.capability.host import meet as host_meet
from ringfence.capability.kind import Kind, invalid
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.operation.target import DEFAULT_PORTS, METHODS, target

if TYPE_CHECKING:
    from ringfence.operation import brokered, needs
    from ringfence.operation.form import Operation

READING = frozenset({"GET", "HEAD"})
_Endpoint = tuple[str, int]


@dataclass(frozen=True, slots=True)
class NetHttp(Kind):
    """Send requests to a host; no scheme means both, no port means the scheme's own, no method means none at all."""

    host: str
    port: int | None = None
    scheme: str | None = None
    methods: frozenset[str] = frozenset()

    tag: ClassVar[str] = "NetHttp"
    name: ClassVar[str] = "net.http"

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", host_pattern(self.host))
        if self.scheme is not None and self.scheme not in DEFAULT_PORTS:
            raise invalid(self.tag, f"scheme must be http or https, not {self.scheme!r}")
        if self.port is not None and (type(self.port) is not int or not 0 < self.port < 65536):
            raise invalid(self.tag, f"port must be a number from 1 to 65535, not {self.port!r}")
        if self.scheme is not None and self.port == DEFAULT_PORTS[self.scheme]:
            object.__setattr__(self, "port", None)
        unknown = set(self.methods) - METHODS
        if unknown:
            raise invalid(self.tag, f"{min(map(str, unknown))!r} is not one of {', '.join(sorted(METHODS))}")
        object.__setattr__(self, "methods", frozenset(self.methods))

    def endpoints(self) -> frozenset[_Endpoint]:
        """Return every scheme and port it is for."""
        schemes = DEFAULT_PORTS if self.scheme is None else (self.scheme,)
        return frozenset((scheme, self.port or DEFAULT_PORTS[scheme]) for scheme in schemes)

    def meet(self, other: Kind) -> NetHttp | None:
        """Return the narrower host, the common endpoints and the common methods."""
        if not isinstance(other, NetHttp):
            return None
        host = host_meet(self.host, other.host)
        endpoints = self.endpoints() & other.endpoints()
        methods = self.methods & other.methods
        if host is None or not endpoints or not methods:
            return None
        (met,) = _grouped(host, dict.fromkeys(endpoints, methods))
        return met

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations, hosts, schemes, ports and methods, each by its name."""
        if operation.kind == "host_reach":
            return None if host_covers(self.host, cast("needs.HostReach", operation).host) else "host"
        if operation.kind != "net_http":
            return "not_granted"
        request = cast("brokered.NetHttp", operation)
        try:
            where = target(request.url)
        except InvalidRequest:
            return "host"
        if not host_covers(self.host, where.host):
            return "host"
        if (where.scheme, where.port) not in self.endpoints():
            return "scheme" if self.scheme not in (None, where.scheme) else "port"
        return None if request.method in self.methods else "method"

    def normal(self) -> Self | None:
        """Return nothing for a capability without methods."""
        return self if self.methods else None

    @classmethod
    def unite(cls, items: Sequence[Self]) -> list[Self]:
        """Return one list for one meaning: by host, without what a wider host has too, endpoints put together."""
        by_host: dict[str, dict[_Endpoint, frozenset[str]]] = {}
        for item in items:
            endpoints = by_host.setdefault(item.host, {})
            for endpoint in item.endpoints():
                endpoints[endpoint] = endpoints.get(endpoint, frozenset()) | item.methods
        united: list[Self] = []
        for host, endpoints in by_host.items():
            wider = [by_host[pattern] for pattern in above(host) if pattern != host and pattern in by_host]
            left = {
                endpoint: methods.difference(*(other.get(endpoint, frozenset()) for other in wider))
                for endpoint, methods in endpoints.items()
            }
            united.extend(cast("list[Self]", _grouped(host, {at: kept for at, kept in left.items() if kept})))
        return united

    @staticmethod
    def meet_all(ours: Sequence[NetHttp], theirs: Sequence[NetHttp]) -> list[NetHttp]:
        """Return every meet of one of `ours` with one of `theirs`, looking only at hosts that are nested."""
        pairs = _nested(ours, theirs) | {(other, one) for one, other in _nested(theirs, ours)}
        met = (one.meet(other) for one, other in pairs)
        return [item for item in met if item is not None]

    def fields(self) -> dict[str, Any]:
        """Return the host and the methods, and port and scheme if they are written."""
        form: dict[str, Any] = {"host": self.host, "methods": sorted(self.methods)}
        if self.port is not None:
            form["port"] = self.port
        if self.scheme is not None:
            form["scheme"] = self.scheme
        return form

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read a host, perhaps with port and scheme, and its methods."""
        methods = fields.get("methods")
        if not isinstance(methods, list) or not all(isinstance(method, str) for method in methods):
            raise invalid(cls.tag, "methods must be a list of texts")
        scheme = fields.get("scheme")
        if scheme is not None and not isinstance(scheme, str):
            raise invalid(cls.tag, "scheme must be text")
        return cls(fields.get("host"), fields.get("port"), scheme, frozenset(methods))  # type: ignore[arg-type]

    def resource(self) -> str:
        """Return `METHODS:[scheme://]host[:port]`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "" if self.scheme is None else f"{self.scheme}://"
        port = "" if self.port is None else f":{self.port}"
        return f"{','.join(sorted(self.methods))}:{scheme}{host}{port}"

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read `METHODS:[scheme://]host[:port]`."""
        methods, colon, place = resource.partition(":")
        scheme, slashes, rest = place.rpartition("://")
        bare, bracket, after = rest.rpartition("]")
        host, _, port = after.partition(":")
        if not colon or (port and not port.isdecimal()):
            raise invalid(cls.tag, f"{resource!r} is not METHODS:[scheme://]host[:port]")
        return cls(
            bare + bracket + host,
            int(port) if port else None,
            scheme if slashes else None,
            frozenset(filter(None, methods.split(","))),
        )


def _nested(ours: Iterable[NetHttp], theirs: Iterable[NetHttp]) -> set[tuple[NetHttp, NetHttp]]:
    by_host: dict[str, list[NetHttp]] = {}
    for item in theirs:
        by_host.setdefault(item.host, []).append(item)
    return {(one, other) for one in ours for pattern in above(one.host) for other in by_host.get(pattern, ())}


def _grouped(host: str, endpoints: dict[_Endpoint, frozenset[str]]) -> list[NetHttp]:
    """Write endpoints with the fewest capabilities, always in the same way."""
    left = dict(endpoints)
    groups: list[NetHttp] = []
    for port in (None, *sorted({port for _, port in endpoints})):
        pair = [(scheme, port or default) for scheme, default in DEFAULT_PORTS.items()]
        if all(endpoint in left for endpoint in pair) and len({left[endpoint] for endpoint in pair}) == 1:
            methods = left[pair[0]]
            for endpoint in pair:
                del left[endpoint]
            groups.append(NetHttp(host, port, None, methods))
    groups.extend(NetHttp(host, port, scheme, methods) for (scheme, port), methods in left.items())
    return groups
