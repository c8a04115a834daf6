"""Where a service listens: its port, the socket in its home that only the owner reaches, and the lock on that home."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ringfence.errors import Unavailable

SOCKET_NAME: Final = "service.sock"
_LOCK_NAME: Final = "service.lock"
_WAITING: Final = 1024


@contextlib.contextmanager
def only_service_of(home: Path) -> Iterator[None]:
    """Be the one service of a home for as long as the block takes, whatever ends it.

    Raises:
        Unavailable: Another one is.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(home / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            # of this process alone: what it forks must not keep the home from the next service
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            raise Unavailable(
                f"another service has {home}" + (f" (process {pid})" if pid.isdigit() else ""),
                reason="service_running",
                fix="use that one (it has MCP at /mcp), end it, or give this one a home of its own with RINGFENCE_HOME",
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def open_port(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address of this machine.

    Raises:
        Unavailable: The address is taken, or not ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_WAITING)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {error.strerror}",
            reason="address_taken",
            fix="give another --port or --host, or end what listens there",
        ) from error
    return listener


@contextlib.contextmanager
def home_socket(home: Path) -> Iterator[socket.socket]:
    """Listen on the socket in a home, for its owner alone; whoever calls must be the only service of the home.

    Raises:
        Unavailable: Something that is no socket of ours is in its place.
    """
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(home, directory)
        os.fchmod(listener.fileno(), 0o600)  # before it has a name: nobody else can connect at any moment
        # by descriptor: the path of a home may be longer than the address of a socket can be
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        os.chmod(SOCKET_NAME, 0o600, dir_fd=directory)
        made = os.stat(SOCKET_NAME, dir_fd=directory, follow_symlinks=False)
        listener.listen(_WAITING)
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                seen = os.stat(SOCKET_NAME, dir_fd=directory, follow_symlinks=False)
                if (seen.st_dev, seen.st_ino) == (made.st_dev, made.st_ino):
                    os.unlink(SOCKET_NAME, dir_fd=directory)
    finally:
        listener.close()
        os.close(directory)


def _remove_stale(home: Path, directory: int) -> None:
    """Remove what a service that was killed left; nobody else has the home, so nobody listens on it."""
    try:
        found = os.stat(SOCKET_NAME, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise Unavailable(
            f"{home / SOCKET_NAME} is not a socket of ours",
            reason="key_store_unsafe",
            fix="find out who put it there, and remove it",
        )
    os.unlink(SOCKET_NAME, dir_fd=directory)
