"""Where an HTTP request goes: parsed once and strictly, so that guard and client cannot read one URL differently."""

from __future__ import annotations

from functools import lru_cache

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.pattern import pattern

DEFAULT_PORTS = {"http": 80, "https": 443}
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
MAX_URL_BYTES = 8192

# No user information, no backslash, no space, nothing that is not ASCII: some client reads each of them differently.
_URL = pattern(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[!$-;=@-Z_a-z~%\[\]]*)?(?:\?(?P<query>[!$-;=?-Z_a-z~%\[\]{}|]*))?(?:#[!-~]*)?\Z"
)
_LABEL = pattern(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
# `127.1`, `0x7f000001` and `2130706433` are addresses to some resolvers.
_NUMERIC = pattern(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = pattern(rf"{_OCTET}(?:\.{_OCTET}){{3}}\Z")


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint and what is asked of it; `host` is a name or an address in its one spelling."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """The endpoint as people write it, without a default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"


@lru_cache(maxsize=512)
def target(url: str) -> Target:
    """Return where `url` leads.

    Raises:
        InvalidRequest: It is not an absolute http or https URL that every client reads alike.
    """
    if len(url) > MAX_URL_BYTES:
        raise InvalidRequest(f"a URL has at most {MAX_URL_BYTES} characters", reason="invalid_url")
    found = _URL.match(url)
    if found is None:
        raise InvalidRequest(
            f"{url[:100]!a} is not an http or https URL without user information",
            reason="invalid_url",
            fix="percent-encode what is not ASCII; write names of hosts as xn--...",
        )
    scheme, port = found["scheme"], found["port"]
    number = int(port) if port else DEFAULT_PORTS[scheme]
    if not 0 < number < 65536:
        raise InvalidRequest(f"port {number} does not exist", reason="invalid_url")
    query = f"?{found['query']}" if found["query"] is not None else ""
    return Target(scheme, host_name(found["host"]), number, (found["path"] or "/") + query)


def host_name(host: object) -> str:
    """Return the one spelling of a host name or address: lower case, no trailing dot, no brackets.

    Raises:
        InvalidRequest: It is neither.
    """
    if not isinstance(host, str):
        raise InvalidRequest(f"{host!r} is not the name of a host", reason="invalid_host")
    name = host.lower()
    if ":" in name:
        return _ipv6(name)
    name = name.removesuffix(".")
    labels = name.split(".")
    if _NUMERIC.match(labels[-1]):
        if not _IPV4.match(name):
            raise InvalidRequest(f"{host[:100]!a} is an unusual spelling of an address", reason="invalid_host")
    elif len(name) > 253 or not all(map(_LABEL.match, labels)):
        raise InvalidRequest(
            f"{host[:100]!a} is not the name of a host", reason="invalid_host", fix="write it in ASCII, as xn--..."
        )
    return name


def is_address(host: str) -> bool:
    """Whether a host in its one spelling is an address and not a name."""
    return ":" in host or _IPV4.match(host) is not None


def _ipv6(name: str) -> str:
    import ipaddress  # costs a millisecond that few runs need

    try:
        return str(ipaddress.IPv6Address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        raise InvalidRequest(f"{name[:100]!a} is not an address", reason="invalid_host") from None
