"""Where a service listens: over TLS, on this machine, or on a socket file; a key goes nowhere else."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote, urlsplit

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """One service; `shown` is what may stand in a message."""

    shown: str
    host: str = "localhost"
    port: int = 0
    prefix: str = ""
    tls: bool = False
    socket_path: str | None = None


def parse_address(url: object, *, keyless: bool = False) -> Address:
    """Read `https://host`, `http://127.0.0.1:8321`, `unix:/run/service.sock` or `http+unix://%2Frun%2Fservice.sock`.

    `keyless` says that no key will be sent, so that plain HTTP to another machine gives none away.

    Raises:
        InvalidRequest: It is none of them, or would carry a key in the clear.
    """
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise _refused("is not a URL")
    if url.startswith("unix:"):
        return _on_socket(url.removeprefix("unix:"))
    if url.startswith("http+unix://"):
        return _on_socket(unquote(url.removeprefix("http+unix://").rstrip("/")))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refused("is not a URL") from None
    if parts.scheme not in _PORTS or not host:
        raise _refused("must begin with https://, http:// or unix:")
    if parts.username is not None or parts.password is not None:
        raise _refused("must not hold a name or a password: give api_key=")
    if parts.query or parts.fragment:
        raise _refused("must not hold a query or a fragment")
    if parts.scheme == "http" and host not in LOOPBACK and not keyless:
        raise _refused("must begin with https:// unless it is on this machine: others on the way would read the key")
    return Address(
        f"{parts.scheme}://{parts.netloc}",
        host,
        port if port is not None else _PORTS[parts.scheme],
        parts.path.rstrip("/"),
        parts.scheme == "https",
    )


def _on_socket(path: str) -> Address:
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise _refused("must name a socket by its absolute path")
    return Address(f"unix:{path}", socket_path=path)


def _refused(problem: str) -> InvalidRequest:
    # not the URL itself: a key may have been written into it
    return InvalidRequest(
        f"url {problem}",
        reason="invalid_url",
        fix="write it as https://host[:port], http://127.0.0.1:8321 or unix:/path",
    )
