"""HTTP: a capability is a host or a suffix, the endpoints of it, the methods, and the paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ringfence.capability.host import above, host_pattern
from ringfence.capability.host import covers as host_covers
from ringfence.capability.host import meet as host_meet
from ringfence.capability.kind import Kind, invalid
from ringfence.capability.url_path import EVERY_PATH, path_covers, path_pattern, paths_allow, paths_meet, plain_paths
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.operation.target import DEFAULT_PORTS, METHODS, target

if TYPE_CHECKING:
    from ringfence.operation import brokered, needs
    from ringfence.operation.form import Operation

READING = frozenset({"GET", "HEAD"})
_Endpoint = tuple[str, int]
_Methods = Mapping[str, frozenset[str]]
"""The paths that each method is for."""


@dataclass(frozen=True, slots=True)
class NetHttp(Kind):
    """Send requests to a host; no scheme means both, no port means the scheme's own, no method means none at all.

    Paths are written in the one spelling of `url_path`; a query is no part of one.
    """

    host: str
    port: int | None = None
    scheme: str | None = None
    methods: frozenset[str] = frozenset()
    paths: frozenset[str] = EVERY_PATH

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
        if not self.paths:
            raise invalid(self.tag, "it needs a path; /** is every one")
        object.__setattr__(self, "paths", plain_paths(map(path_pattern, self.paths)))

    def endpoints(self) -> frozenset[_Endpoint]:
        """Return every scheme and port it is for."""
        schemes = DEFAULT_PORTS if self.scheme is None else (self.scheme,)
        return frozenset((scheme, self.port or DEFAULT_PORTS[scheme]) for scheme in schemes)

    def meet(self, other: Kind) -> NetHttp | None:
        """Return the narrower host, the common endpoints, the common methods and the common paths."""
        if not isinstance(other, NetHttp):
            return None
        host = host_meet(self.host, other.host)
        endpoints = self.endpoints() & other.endpoints()
        methods = self.methods & other.methods
        paths = paths_meet(self.paths, other.paths)
        if host is None or not endpoints or not methods or not paths:
            return None
        (met,) = _grouped(host, dict.fromkeys(endpoints, dict.fromkeys(methods, paths)))
        return met

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations, hosts, schemes, ports, methods and paths, each by its name."""
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
        if request.method not in self.methods:
            return "method"
        return None if paths_allow(self.paths, where.path) else "path"

    def normal(self) -> Self | None:
        """Return nothing for a capability without methods."""
        return self if self.methods else None

    @classmethod
    def unite(cls, items: Sequence[Self]) -> list[Self]:
        """Return one list for one meaning: by host, without what a wider host has too, endpoints put together."""
        by_host: dict[str, dict[_Endpoint, _Methods]] = {}
        for item in items:
            endpoints = by_host.setdefault(item.host, {})
            for endpoint in item.endpoints():
                endpoints[endpoint] = _with(endpoints.get(endpoint, {}), item)
        united: list[Self] = []
        for host, endpoints in by_host.items():
            wider = [by_host[pattern] for pattern in above(host) if pattern != host and pattern in by_host]
            left = {
                endpoint: _without(methods, [other[endpoint] for other in wider if endpoint in other])
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
        """Return the host and the methods, and port, scheme and paths if they are written."""
        form: dict[str, Any] = {"host": self.host, "methods": sorted(self.methods)}
        if self.port is not None:
            form["port"] = self.port
        if self.scheme is not None:
            form["scheme"] = self.scheme
        if self.paths != EVERY_PATH:
            form["paths"] = sorted(self.paths)
        return form

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read a host, perhaps with port, scheme and paths, and its methods."""
        methods = fields.get("methods")
        if not isinstance(methods, list) or not all(isinstance(method, str) for method in methods):
            raise invalid(cls.tag, "methods must be a list of texts")
        scheme = fields.get("scheme")
        if scheme is not None and not isinstance(scheme, str):
            raise invalid(cls.tag, "scheme must be text")
        paths = fields.get("paths", list(EVERY_PATH))
        if not isinstance(paths, list):
            raise invalid(cls.tag, "paths must be a list of texts")
        return cls(
            fields.get("host"),  # type: ignore[arg-type]
            fields.get("port"),
            scheme,
            frozenset(methods),
            frozenset(map(path_pattern, paths)),
        )

    def resource(self) -> str:
        """Return `METHODS:[scheme://]host[:port][/path,/path]`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "" if self.scheme is None else f"{self.scheme}://"
        port = "" if self.port is None else f":{self.port}"
        paths = "" if self.paths == EVERY_PATH else ",".join(sorted(self.paths))
        return f"{','.join(sorted(self.methods))}:{scheme}{host}{port}{paths}"

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read `METHODS:[scheme://]host[:port][/path,/path]`."""
        methods, colon, place = resource.partition(":")
        scheme, slashes, rest = place.partition("://") if "://" in place else ("", "", place)
        rest, slash, paths = rest.partition("/")
        bare, bracket, after = rest.rpartition("]")
        host, _, port = after.partition(":")
        if not colon or (port and not port.isdecimal()):
            raise invalid(cls.tag, f"{resource!r} is not METHODS:[scheme://]host[:port][/path,/path]")
        return cls(
            bare + bracket + host,
            int(port) if port else None,
            scheme if slashes else None,
            frozenset(filter(None, methods.split(","))),
            frozenset(f"/{paths}".split(",")) if slash else EVERY_PATH,
        )


def _nested(ours: Iterable[NetHttp], theirs: Iterable[NetHttp]) -> set[tuple[NetHttp, NetHttp]]:
    by_host: dict[str, list[NetHttp]] = {}
    for item in theirs:
        by_host.setdefault(item.host, []).append(item)
    return {(one, other) for one in ours for pattern in above(one.host) for other in by_host.get(pattern, ())}


def _with(methods: _Methods, item: NetHttp) -> _Methods:
    more = {method: methods.get(method, frozenset()) | item.paths for method in item.methods}
    return {**methods, **{method: plain_paths(paths) for method, paths in more.items()}}


def _without(methods: _Methods, wider: Sequence[_Methods]) -> _Methods:
    """Return what is not in any of `wider` as well; a path is in several only if it is in one of them."""
    left = {
        method: frozenset(
            path
            for path in paths
            if not any(path_covers(other, path) for each in wider for other in each.get(method, ()))
        )
        for method, paths in methods.items()
    }
    return {method: paths for method, paths in left.items() if paths}


def _grouped(host: str, endpoints: Mapping[_Endpoint, _Methods]) -> list[NetHttp]:
    """Write endpoints with the fewest capabilities, always in the same way."""
    left = dict(endpoints)
    groups: list[NetHttp] = []
    for port in (None, *sorted({port for _, port in endpoints})):
        pair = [(scheme, port or default) for scheme, default in DEFAULT_PORTS.items()]
        if all(endpoint in left for endpoint in pair) and left[pair[0]] == left[pair[1]]:
            methods = left[pair[0]]
            for endpoint in pair:
                del left[endpoint]
            groups.extend(_written(host, port, None, methods))
    for (scheme, port), methods in left.items():
        groups.extend(_written(host, port, scheme, methods))
    return groups


def _written(host: str, port: int | None, scheme: str | None, methods: _Methods) -> Iterable[NetHttp]:
    """Write one endpoint, or both of a port: the methods together that have the same paths."""
    for paths in dict.fromkeys(methods[method] for method in sorted(methods)):
        yield NetHttp(host, port, scheme, frozenset(each for each in methods if methods[each] == paths), paths)
