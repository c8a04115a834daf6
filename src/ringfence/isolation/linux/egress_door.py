"""The one way out of a box: a socket that listens on its loopback, made inside it and held by the host alone.

The box has no route, so whatever a guest does with sockets of its own ends in its own loopback. What it connects to
here is accepted outside, by the proxy, which knows by the descriptor whose connection it is.
"""

from __future__ import annotations

import socket
import struct

from ringfence.isolation.linux.steps import Steps

PORT = 3128
_BACKLOG = 512
_ADDRESS = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(PORT), socket.inet_aton("127.0.0.1"))
_PROXY = f"http://127.0.0.1:{PORT}"
_DIRECT = "localhost,127.0.0.1,::1"

# A convenience for programs that ask; one that does not reaches nothing.
ENVIRONMENT = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), _PROXY),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), _DIRECT),
    "PIP_PROXY": _PROXY,
    "npm_config_proxy": _PROXY,
    "npm_config_https_proxy": _PROXY,
    "npm_config_noproxy": _DIRECT,
    "NODE_USE_ENV_PROXY": "1",
}


def open_up(steps: Steps, free: int) -> int:
    """Add the steps that make the listening socket, which gets the lowest free descriptor, `free`; return that."""
    steps.add("socket", socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC, 0, expect=free)
    steps.add("bind", free, _ADDRESS, len(_ADDRESS))
    steps.add("listen", free, _BACKLOG)
    return free
