"""The process that Playwright takes for the browser: it builds the box around itself, and starts Chromium in there.

It connects to the engine first, which tells it what to build and gets from it the box's only way out. It stays outside,
as the parent of the box's pid 1, and ends the box when the engine, or Playwright, is gone.

It imports little: a browser is waited for.
"""

from __future__ import annotations

import binascii
import contextlib
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys

from ringfence.isolation.linux import channel, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

GUEST_ID = 1000
_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_CDP = 4  # the higher of the two descriptors that the browser is driven by
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LOOPBACK_UP = struct.pack("16sH14x", b"lo", _IFF_UP)
_BACKLOG = 256
_SEALED = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
_WRITABLE = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_STAGING = "/tmp"
_LIMITS = (
    (resource.RLIMIT_CORE, 1),  # by 0 the kernel would start a handler, which runs on the host
    (resource.RLIMIT_MEMLOCK, 65536),
    (resource.RLIMIT_MSGQUEUE, 0),
    (resource.RLIMIT_NOFILE, 4096),
)


def main() -> NoReturn:
    """Build the box and wait for its end."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        host.connect("\0" + sys.argv[1])
        config, entrances = channel.receive(host)
        if config is None:
            os._exit(1)
        _launch(host, config, entrances)
    except BaseException as error:  # noqa: BLE001  reported to the engine, whatever it is
        channel.send(host, {"failed": f"{type(error).__name__}: {error}"})
    os._exit(1)


def _launch(host: socket.socket, config: dict[str, Any], entrances: list[int]) -> NoReturn:
    for entrance in entrances:
        os.write(entrance, b"0")
        os.close(entrance)
    kernel.write_file("/proc/self/oom_score_adj", b"1000")
    for what, most in _LIMITS:
        hard = resource.getrlimit(what)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))
    os.umask(0o022)
    if config["uid"] is not None:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
        kernel.set_dumpable(1)  # else the maps below are root's to write
    kernel.no_new_privileges()
    _enter_namespaces()
    kernel.die_with_parent(signal.SIGKILL)  # after the ids, which clear it
    door = _make_door(config["port"])
    socket.sethostname("browser")
    _build_root(config)
    pid = os.fork()
    if pid == 0:
        host.close()
        door.close()
        _init(config)
    for fd in range(_CDP + 1):
        os.close(fd)
    pidfd = os.pidfd_open(pid)
    channel.send(host, {"pid": pid}, [door.fileno(), pidfd])
    door.close()
    _wait(host, pidfd)


def _enter_namespaces() -> None:
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(_NAMESPACES)
    kernel.write_file("/proc/self/setgroups", b"deny")
    kernel.write_file("/proc/self/uid_map", f"{GUEST_ID} {uid} 1".encode())
    kernel.write_file("/proc/self/gid_map", f"{GUEST_ID} {gid} 1".encode())


def _make_door(port: int) -> socket.socket:
    """Return a socket that listens on the loopback of the box, which is all the network there is in it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _LOOPBACK_UP)
    door = socket.socket()
    door.bind(("127.0.0.1", port))
    door.listen(_BACKLOG)
    return door


def _build_root(config: dict[str, Any]) -> None:
    """Assemble what the browser sees: read-only programs and fonts, a few made-up files, one bounded place to write."""
    kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    trees = [(kernel.clone_tree(path.encode()), path) for path in config["trees"]]
    devices = [(kernel.clone_tree(f"/dev/{name}".encode(), devices=True), name) for name in config["devices"]]
    kernel.mount(b"tmpfs", _STAGING.encode(), b"tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, b"size=1m,mode=755")
    os.chdir(_STAGING)
    for directory in config["directories"]:
        os.makedirs(directory)
    for tree, path in trees:
        inside = path.lstrip("/")
        os.makedirs(os.path.dirname(inside) or ".", exist_ok=True)
        if stat.S_ISDIR(os.fstat(tree).st_mode):
            os.makedirs(inside, exist_ok=True)
        else:
            os.close(os.open(inside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        kernel.attach_tree(tree, inside.encode())
        os.close(tree)
    for tree, name in devices:
        os.close(os.open(f"dev/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        kernel.attach_tree(tree, f"dev/{name}".encode())
        os.close(tree)
    for says, where in config["links"]:
        os.symlink(says, where)
    for where, text in config["files"].items():
        with open(where, "w", encoding="utf-8") as file:
            file.write(text)
    # one file system, so that one size holds for all that is written; it is memory, and counted as such
    caps = b"size=%d,nr_inodes=65536,mode=755" % config["disk_bytes"]
    kernel.mount(b"tmpfs", b"run", b"tmpfs", _WRITABLE, caps)
    for name, target in config["writable"]:
        os.mkdir(f"run/{name}", 0o700)
        kernel.mount(f"run/{name}".encode(), target.encode(), None, kernel.MS_BIND)
    kernel.mount(b"tmpfs", b"run", b"tmpfs", _SEALED, b"size=4k,nr_inodes=1,mode=755")


def _init(config: dict[str, Any]) -> NoReturn:
    """Finish the box as its pid 1, start the browser in it and reap whatever ends, until the browser does."""
    try:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.mount(b"proc", b"proc", b"proc", _WRITABLE)
        kernel.pivot_root_here()
        kernel.mount(None, b"/", None, kernel.MS_REMOUNT | kernel.MS_BIND | _SEALED)
        os.chdir(config["environment"]["HOME"])
        browser = os.fork()
        if browser == 0:
            _become_browser(config)
        kernel.close_all_from(0)
        kernel.set_dumpable(0)
        kernel.drop_bounding_set()
        kernel.load_filter(binascii.a2b_base64(config["init_filter"]))
        while os.wait()[0] != browser:
            continue
    except BaseException as error:  # noqa: BLE001  its last words; nobody else is there to hear
        os.write(2, f"ringfence: the box of the browser: {error}\n".encode())
    os._exit(1)


def _become_browser(config: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        kernel.close_all_from(_CDP + 1)
        kernel.drop_bounding_set()
        kernel.load_filter(binascii.a2b_base64(config["filter"]))
        os.execve(config["program"], [config["program"], *sys.argv[2:]], config["environment"])  # noqa: S606  no shell
    except BaseException as error:  # noqa: BLE001  its last words
        os.write(2, f"ringfence: the browser could not be started: {error}\n".encode())
    os._exit(1)


def _wait(host: socket.socket, pidfd: int) -> NoReturn:
    """Sleep until the engine lets go or the box is over; the engine says nothing more, and nor does this."""
    poller = select.poll()
    poller.register(host, select.POLLIN)
    poller.register(pidfd, select.POLLIN)
    poller.poll()
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.wait()
    os._exit(0)
