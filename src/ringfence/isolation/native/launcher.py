"""The launcher: the first process of ours that starts, which enters the namespaces and forks the zygote.

As root it never maps the host's uid 0: the host writes a map of unprivileged ids for it. As an ordinary user it maps
the caller's own id. It stays behind, outside the template root, to hand out read-only copies of work directories.
"""

from __future__ import annotations

import os
import resource
import signal
import socket

from ringfence.isolation.linux import channel, interpreter, kernel
from ringfence.isolation.linux.view import GUEST_ID
from ringfence.isolation.native import template, zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)


def main(launcher_fd: int, zygote_fd: int) -> NoReturn:
    """Enter the namespaces, fork the zygote, and serve requests for work directories."""
    host = socket.socket(fileno=launcher_fd)
    control = socket.socket(fileno=zygote_fd)
    try:
        config, _ = channel.receive(host)
        if config is None:
            os._exit(0)
        _launch(host, control, config)
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        channel.send(host, {"failed": str(error), "errno": getattr(error, "errno", None)})
    os._exit(1)


def _launch(host: socket.socket, control: socket.socket, config: dict[str, Any]) -> NoReturn:
    kernel.die_with_parent(signal.SIGKILL)
    kernel.no_new_privileges()
    # core: 1 and not 0, by which the kernel starts no handler, which would run on the host, as root, on a guest's bytes
    for what, most in ((resource.RLIMIT_CORE, 1), (resource.RLIMIT_MEMLOCK, 65536), (resource.RLIMIT_MSGQUEUE, 0)):
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    # every run costs the zygote a few descriptors; a worker's own number is lowered before it is sealed
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o022)
    if config["mapped_by_host"]:
        # as root, while host paths below directories like /root can still be walked
        trees = template.open_trees(config)
        kernel.unshare(_NAMESPACES)
        channel.send(host, {"unshared": True})
        _await_go(host)
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    else:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(_NAMESPACES)
        kernel.write_file("/proc/self/setgroups", b"deny")
        kernel.write_file("/proc/self/uid_map", f"{GUEST_ID} {uid} 1".encode())
        kernel.write_file("/proc/self/gid_map", f"{GUEST_ID} {gid} 1".encode())
        trees = template.open_trees(config)
    kernel.die_with_parent(signal.SIGKILL)  # changing ids or namespaces cleared it
    if os.fork() == 0:
        host.close()
        try:
            zygote.main(control, config, trees)
        except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
            requested = isinstance(error, interpreter.PreloadFailed)
            channel.send(control, {"failed": str(error), "requested": requested})
            os._exit(1)
    control.close()
    for tree in trees:
        os.close(tree)
    channel.send(host, {"launched": True})
    _serve_work_directories(host)


def _await_go(host: socket.socket) -> None:
    answer, _ = channel.receive(host)
    if answer is None:
        os._exit(0)


def _serve_work_directories(host: socket.socket) -> NoReturn:
    while True:
        request, _ = channel.receive(host)
        if request is None:
            os._exit(0)
        try:
            _hand_over(host, request["path"])
        except OSError as error:
            channel.send(host, {"path": request["path"], "failed": str(error), "errno": error.errno})


def _hand_over(host: socket.socket, path: str) -> None:
    fd = kernel.clone_tree(os.fsencode(path))
    try:
        channel.send(host, {"path": path}, [fd])
    finally:
        os.close(fd)
