"""The process in a box's network: it holds no privilege and no file, connects where it is told, and hands that out."""

from __future__ import annotations

import ctypes
import os
import resource
import socket

from ringfence.isolation.linux import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_NOBODY = 65534
_CONNECT_SECONDS = 5.0
_CAPABILITY_VERSION_3 = 0x2008_0522


def main(channel: int, network: int, owner: int) -> NoReturn:
    """Step into `network`, through the users of `owner` unless that is -1, and serve until `channel` ends."""
    asked = socket.socket(fileno=channel)
    try:
        _step_in(network, owner)
        while port := asked.recv(16):
            _answer(asked, int(port))
    except OSError as error:
        asked.send(str(error).encode())
    os._exit(0)


def _step_in(network: int, owner: int) -> None:
    kernel.no_new_privileges()
    if owner >= 0:
        kernel.setns(owner, kernel.CLONE_NEWUSER)
        os.close(owner)
    kernel.setns(network, kernel.CLONE_NEWNET)
    os.close(network)
    if owner < 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    kernel.set_dumpable(0)


def _answer(asked: socket.socket, port: int) -> None:
    """Try both loopbacks, as a browser told `localhost` would."""
    why = ""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as made:
                made.settimeout(_CONNECT_SECONDS)
                made.connect((host, port))
                made.setblocking(True)
                socket.send_fds(asked, [b"connected"], [made.fileno()])
                return
        except OSError as error:
            why = why or error.strerror or str(error)
    asked.send(why.encode())
