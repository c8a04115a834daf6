"""Where a request may go by its name alone: read by the one parser, before anything is resolved or connected.

`operation.target` is that parser. What it returns is used for the decision, the resolver, TLS, the `Host` header and
the record alike, so that no two of them can mean different hosts.
"""

from __future__ import annotations

import re
from typing import Final

from ringfence.dataclass import replace
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation.target import MAX_URL_BYTES, Target, is_address, target

# Names that mean this host, its neighbours or its cloud, whatever a resolver says about them.
LOCAL_SUFFIXES: Final = (
    "localhost",
    "local",
    "localdomain",
    "internal",
    "intranet",
    "lan",
    "home",
    "corp",
    "home.arpa",
)
METADATA_NAMES: Final = frozenset(
    {
        "metadata", "metadata.google.internal", "metadata.goog", "metadata.azure.internal", "metadata.tencentyun.com",
        "instance-data", "instance-data.ec2.internal", "metadata.platformequinix.com", "metadata.packet.net",
        "metadata.nic.ibm.com", "api.metadata.cloud.ibm.com",
    }
)  # fmt: skip
# Where something listens that reads a line of an HTTP request as a command of its own (the Fetch standard's list).
BLOCKED_PORTS: Final = frozenset(
    {
        1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109,
        110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530,
        531, 532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3659, 4045, 4190,
        5060, 5061, 6000, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080,
    }
)  # fmt: skip

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def url_of(where: Target) -> str:
    """Return the URL of a target, in the one form that results and records show."""
    return where.origin + where.path


def checked(where: Target, *, private: bool = False) -> Target:
    """Return `where` if its name and port may be asked for at all.

    With the `private` network open its names are too; names of clouds' metadata and blocked ports never are.

    Raises:
        CapabilityBlocked: It is a name of this host, its neighbours or its cloud, or a port that is not for HTTP.
    """
    if where.port in BLOCKED_PORTS:
        raise CapabilityBlocked(f"port {where.port} belongs to another protocol than HTTP", reason="port")
    if where.host in METADATA_NAMES:
        raise CapabilityBlocked(f"{where.host} gives out a cloud's credentials", reason="domain", host=where.host)
    if not private and is_local_name(where.host):
        raise CapabilityBlocked(
            f"{where.host} is a name of this host or its own network, not of the internet",
            reason="domain",
            host=where.host,
        )
    return where


def is_local_name(host: str) -> bool:
    """Whether a host in its one spelling is a name that only this host's own network knows."""
    if is_address(host):
        return False
    return "." not in host or any(host == suffix or host.endswith(f".{suffix}") for suffix in LOCAL_SUFFIXES)


def followed(base: Target, location: str) -> Target:
    """Return where a redirect from `base` leads; `location` is what the server said, and is read as strictly as a URL.

    Raises:
        InvalidRequest: It is no URL that every client reads alike.
        CapabilityBlocked: It leads to another scheme, or from https to http.
    """
    if len(location) > MAX_URL_BYTES:
        raise InvalidRequest(f"a URL has at most {MAX_URL_BYTES} characters", reason="invalid_url")
    scheme = _SCHEME.match(location)
    if scheme is not None:
        name = scheme[0][:-1].lower()
        if name not in ("http", "https"):
            raise CapabilityBlocked(f"the redirect leads to {name[:20]}:, which is not HTTP", reason="redirect")
        found = target(name + location[len(name) :])
    elif location.startswith("//"):
        found = target(f"{base.scheme}:{location}")
    else:
        found = target(base.origin + _merged(base, location))
    if base.scheme == "https" and found.scheme == "http":
        raise CapabilityBlocked("the redirect leads from https to http", reason="redirect")
    return replace(found, path=plain_path(found.path))


def plain_path(path: str) -> str:
    """Return path and query without dot segments, and with every escape that needs none undone.

    `/a/%2e%2e/b` is `/b` to some servers: a rule about paths has to see what they see.

    Raises:
        InvalidRequest: An escape is not one, or stands for NUL.
    """
    place, mark, query = path.partition("?")
    segments: list[str] = []
    parts = _ESCAPE.sub(_unescaped, place).split("/")[1:]
    for part in parts:
        if part == "..":
            del segments[-1:]
        elif part != ".":
            segments.append(part)
    if parts[-1:] in (["."], [".."]):
        segments.append("")
    return "/" + "/".join(segments) + mark + _ESCAPE.sub(_unescaped, query)


def _unescaped(escape: re.Match[str]) -> str:
    digits = escape[1]
    if digits is None or digits == "00":
        raise InvalidRequest(f"{escape.string[:100]!a} has an escape that stands for nothing", reason="invalid_url")
    character = chr(int(digits, 16))
    return character if character in _UNRESERVED else f"%{digits.upper()}"


def _merged(base: Target, reference: str) -> str:
    """Put a reference without a host behind what comes before it in the URL of `base`."""
    path, mark, query = base.path.partition("?")
    if reference.startswith("/"):
        return reference
    if reference.startswith("?"):
        return path + reference
    if not reference or reference.startswith("#"):
        return path + mark + query
    return path[: path.rindex("/") + 1] + reference
