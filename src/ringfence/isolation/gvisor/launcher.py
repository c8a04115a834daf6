"""The launcher of gVisor boxes: it gives up the host's files and ids first, and starts every `runsc` in what is left.

Its root holds the program, the image and nothing else; it has its own ids, mounts, processes and network. A box is one
process of it, first of a pid namespace: when that dies, or this one, or the host, the kernel ends everything below it,
and with the processes go the mounts and the state that `runsc` keeps of its containers. There is nothing to tidy up.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import stat

from ringfence.isolation.linux import channel, kernel

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
_STAGING_CHOICES = ("/tmp", "/mnt", "/run", "/var")  # to mount a root at, in a namespace of ours
_DEVICES = ("null", "zero", "urandom")
_INPUTS = "/inputs"
_STREAMS = 3
_INNER = kernel.MS_NOSUID | kernel.MS_NODEV


def main(fd: int) -> NoReturn:
    """Become the launcher that the host describes, and serve until the host is gone."""
    host = socket.socket(fileno=fd)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # two are the C library's
            signal.signal(number, signal.SIG_DFL)  # an application may ignore its children, and runsc waits for its own
    try:
        config, _ = channel.receive(host)
        if config is not None:
            _launch(host, config)
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        channel.send(host, {"failed": str(error)})
    os._exit(1)


def _launch(host: socket.socket, config: dict[str, Any]) -> NoReturn:
    kernel.no_new_privileges()
    # core: 1 and not 0, by which the kernel starts no handler, which would run on the host, as root, on a guest's bytes
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.umask(0o022)
    if config["mapped_by_host"]:
        trees = _open_trees(config)  # as root, while host paths below directories like /root can still be walked
        kernel.unshare(_NAMESPACES)
        channel.send(host, {"unshared": True})
        answer, _ = channel.receive(host)
        if answer is None:
            os._exit(0)
        os.setgroups([])
    else:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(_NAMESPACES)
        kernel.write_file("/proc/self/setgroups", b"deny")
        kernel.write_file("/proc/self/uid_map", f"0 {uid} 1".encode())
        kernel.write_file("/proc/self/gid_map", f"0 {gid} 1".encode())
        trees = _open_trees(config)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    first = os.fork()
    if first == 0:
        _serve(host, config, trees)
    host.close()
    os.waitpid(first, 0)
    os._exit(0)


def _serve(host: socket.socket, config: dict[str, Any], trees: list[int]) -> NoReturn:
    try:
        kernel.die_with_parent(signal.SIGKILL)
        _enter_root(config, trees)
        serving = _Launcher(host)
        channel.send(host, {"ready": True})
        serving.serve()
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        channel.send(host, {"failed": str(error)})
    os._exit(1)


# --- its root ---


def _open_trees(config: dict[str, Any]) -> list[int]:
    return [kernel.clone_tree(os.fsencode(source)) for source, _ in config["trees"]]


def _enter_root(config: dict[str, Any], trees: list[int]) -> None:
    """Make a root of the trees, and let go of the host's."""
    kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    staging = next(path for path in _STAGING_CHOICES if os.path.isdir(path))
    devices = [kernel.clone_tree(f"/dev/{name}".encode(), devices=True) for name in _DEVICES]
    kernel.mount(b"tmpfs", staging.encode(), b"tmpfs", _INNER, b"size=1m,nr_inodes=256,mode=755")
    os.chdir(staging)
    for name in ("dev", "proc", "box", "tmp"):
        os.mkdir(name)
    targets = [target for _, target in config["trees"]] + [f"/dev/{name}" for name in _DEVICES]
    for tree, target in zip((*trees, *devices), targets, strict=True):
        _attach(tree, target.lstrip("/"))
    if config["mount_points"]:
        _make_mount_points(config["mount_points"])
    # a full /proc has to be in view, or the kernel refuses the boxes a /proc of their own
    kernel.mount(b"proc", b"proc", b"proc", _INNER | kernel.MS_NOEXEC)
    kernel.pivot_root_here()


def _make_mount_points(wanted: dict[str, list[str]]) -> None:
    """Give the image, which nobody can write, directories to mount at: in place of one that it has empty."""
    for directory, names in wanted.items():
        where = directory.lstrip("/")
        kernel.mount(b"tmpfs", where.encode(), b"tmpfs", _INNER, b"size=64k,nr_inodes=256,mode=755")
        for name in names:
            os.mkdir(f"{where}/{name}")
        kernel.mount(None, where.encode(), None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _INNER)


def _attach(tree: int, target: str) -> None:
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    kernel.attach_tree(tree, target.encode())
    os.close(tree)


# --- its boxes ---


class _Launcher:
    """Starts a box on request, and waits for each."""

    def __init__(self, host: socket.socket) -> None:
        self._host = host
        self._own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._waiting = select.epoll()
        self._waiting.register(host, select.EPOLLIN)
        self._boxes: dict[int, int] = {}
        """The pid of each, by its pidfd."""

    def serve(self) -> NoReturn:
        while True:
            for fd, _ in self._waiting.poll():
                if fd in self._boxes:
                    self._bury(fd)
                    continue
                try:
                    wanted, fds = channel.receive(self._host)
                except OSError as error:  # no room for what came with it
                    channel.send(self._host, {"failed": str(error)})
                    continue
                if wanted is None:
                    os._exit(0)  # and with the first process of its namespace everything goes
                self._start(wanted, fds)

    def _bury(self, pidfd: int) -> None:
        os.waitpid(self._boxes.pop(pidfd), 0)
        self._waiting.unregister(pidfd)
        os.close(pidfd)

    def _start(self, wanted: dict[str, Any], fds: list[int]) -> None:
        try:
            kernel.unshare(kernel.CLONE_NEWPID)
            try:
                pid = os.fork()
                if pid == 0:
                    _become_box(wanted, fds)
            finally:
                kernel.setns(self._own_processes, kernel.CLONE_NEWPID)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            channel.send(self._host, {"id": wanted["id"], "failed": str(error)})
        else:
            self._boxes[pidfd] = pid
            self._waiting.register(pidfd, select.EPOLLIN)
            channel.send(self._host, {"id": wanted["id"]}, [pidfd])
        finally:
            for fd in fds:
                os.close(fd)


def _become_box(wanted: dict[str, Any], fds: list[int]) -> NoReturn:
    """Go into the cgroup, make the run's own file system, and become `runsc`."""
    streams, entrances = fds[:_STREAMS], fds[_STREAMS:]
    try:
        kernel.die_with_parent(signal.SIGKILL)
        for entrance in entrances:
            os.write(entrance, b"0")  # first of all: what is made from here on is on the run's bill
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWCGROUP)
        kernel.mount(b"proc", b"/proc", b"proc", _INNER | kernel.MS_NOEXEC)
        _furnish(wanted)
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        # what of ours has a number above is closed by the exec
        os.execve(wanted["command"][0], wanted["command"], {})  # noqa: S606  the program the host chose
    except BaseException as error:  # noqa: BLE001  what the host hears as the last words of the box
        os.write(streams[2], f"{error}\n".encode())
    os._exit(1)


def _furnish(wanted: dict[str, Any]) -> None:
    kernel.mount(b"tmpfs", b"/box", b"tmpfs", _INNER, b"size=1m,nr_inodes=64,mode=700")
    for name in ("state", "bundle", "inputs", "files"):
        os.mkdir(f"/box/{name}")
    with open("/box/bundle/config.json", "w", encoding="utf-8") as file:
        json.dump(wanted["config"], file)
    owner = wanted["guest_id"]
    options = f"size={wanted['disk_bytes']},nr_inodes={wanted['inodes']},mode=755"
    kernel.mount(b"tmpfs", b"/box/files", b"tmpfs", _INNER, options.encode())
    for name in wanted["directories"]:
        os.mkdir(f"/box/files/{name}", 0o700)
        os.chown(f"/box/files/{name}", owner, owner)
    kernel.mount(f"{_INPUTS}/{wanted['id']}".encode(), b"/box/inputs", None, kernel.MS_BIND)
    kernel.unmount(_INPUTS.encode())  # those of the others
