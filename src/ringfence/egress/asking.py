"""One request and the bytes it is sent as: what frames it, and whom it is for, is never a caller's to say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ringfence.dataclass import dataclass, field, replace
from ringfence.egress.overrides import as_servers_read, is_override
from ringfence.egress.unpacking import CODINGS
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation.target import DEFAULT_PORTS, Target
from ringfence.version import __version__

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
_OURS: Final = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade", "expect",
        "accept-encoding", "http2-settings", "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip",
        # a request that carries these is answered by the metadata services of Google and Azure, and by IMDSv2
        "metadata-flavor", "metadata", "x-google-metadata-request", "x-aws-ec2-metadata-token-ttl-seconds",
    }
)  # fmt: skip
FOLLOWED: Final = frozenset({301, 302, 303, 307, 308})
_REWRITING: Final = frozenset({301, 302, 303})


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `headers` and `body` are a caller's, and at the level of safe retrieval there are none."""

    method: str
    where: Target
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    body: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            if not _TOKEN.match(name) or not _VALUE.match(value):
                raise InvalidRequest(f"{name[:100]!a} is no header", reason="invalid_operation", field="headers")
            read = as_servers_read(name)
            if read in _OURS or is_override(name) or read.startswith(("proxy-", "sec-")):
                raise InvalidRequest(
                    f"{name[:100]} is not a caller's to set", reason="invalid_operation", field="headers"
                )
        if len({name.lower() for name in self.headers}) != len(self.headers):
            raise InvalidRequest("a header is there twice", reason="invalid_operation", field="headers")
        if self.body is not None and self.method in ("GET", "HEAD"):
            raise InvalidRequest(f"{self.method} has no body", reason="invalid_operation", field="body_b64")

    def sent(self) -> bytes:
        """Return the request as it goes out."""
        own = {
            "Host": _authority(self.where),
            "User-Agent": f"ringfence/{__version__}",
            "Accept": "*/*",
            "Accept-Encoding": ", ".join(CODINGS),
            "Connection": "close",
        }
        if self.body is not None or self.method in ("POST", "PUT", "PATCH"):
            own["Content-Length"] = str(len(self.body or b""))
        said = {name.lower() for name in self.headers}
        lines = [f"{name}: {value}" for name, value in own.items() if name.lower() not in said]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        head = f"{self.method} {self.where.path} HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n"
        return head.encode("ascii") + (self.body or b"")

    def redirected(self, status: int, where: Target) -> Ask:
        """Return what is asked next after a redirect to `where`; another origin is told nothing of the caller's.

        Raises:
            CapabilityBlocked: A body would be sent on to another origin.
        """
        becomes_get = status in _REWRITING and self.method != "HEAD"
        asked = replace(self, method="GET", body=None) if becomes_get else self
        if where.origin == self.where.origin:
            return replace(asked, where=where)
        if asked.body is not None:
            raise CapabilityBlocked("the redirect would send the body on to another origin", reason="redirect")
        return replace(asked, where=where, headers=MappingProxyType({}))


def _authority(where: Target) -> str:
    host = f"[{where.host}]" if ":" in where.host else where.host
    return host if where.port == DEFAULT_PORTS[where.scheme] else f"{host}:{where.port}"
