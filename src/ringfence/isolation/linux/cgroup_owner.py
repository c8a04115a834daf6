"""Who owns a cgroup directory, told by its name alone, so that the next start can clean up after a SIGKILL."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import signal
import time
from collections.abc import Iterator
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.isolation.linux.cgroup_contract import write_at
from ringfence.pattern import pattern

OWNED: Final = pattern(r"ringfence-(\d+)-(\d+)-(\d+)-\d+")
"""`ringfence-<host pid>-<its start time>-<its pid namespace>-<serial>`; other names are never touched."""

SWEEP_SECONDS: Final = 2.0

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Owner:
    """The process a cgroup directory belongs to.

    The start time tells it from a later process with the same pid; the pid namespace keeps two containers that share
    one cgroup tree from taking each other for dead.
    """

    pid: int
    started: int
    namespace: int


def current_owner() -> Owner:
    """Return this process as an owner."""
    pid = os.getpid()
    state = process_state(pid)
    return Owner(pid, state[1] if state else 0, pid_namespace())


def directory_name(owner: Owner) -> str:
    """Return a new directory name for `owner`, unique within its process."""
    return f"ringfence-{owner.pid}-{owner.started}-{owner.namespace}-{next(_serial)}"


def parse_owner(name: str) -> Owner | None:
    """Return the owner a directory name tells, or None for a name that is not ours."""
    match = OWNED.fullmatch(name)
    return Owner(int(match[1]), int(match[2]), int(match[3])) if match else None


def parse_stat(text: bytes) -> tuple[str, int]:
    """Return state and start time from /proc/<pid>/stat; the command name may hold blanks and parentheses."""
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode("ascii"), int(fields[19])


def process_state(pid: int) -> tuple[str, int] | None:
    """Return state and start time of a process, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return parse_stat(file.read())
    except (FileNotFoundError, ProcessLookupError):
        return None


def pid_namespace() -> int:
    """Return the inode that names our pid namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def is_dead(owner: Owner, state: tuple[str, int] | None, namespace: int) -> bool:
    """Decide whether an owner is certainly gone; one in a foreign pid namespace cannot be judged, so it is not."""
    if owner.namespace != namespace:
        return False
    return state is None or state[1] != owner.started or state[0] in "ZX"


def sweep_below(parents: tuple[str, ...]) -> tuple[str, ...]:
    """Kill and remove what dead owners left directly below `parents`; return the owner directories now gone.

    Two processes may sweep at once: every step takes "already gone" for success.
    """
    namespace = pid_namespace()
    left: list[str] = []
    for parent in parents:
        try:
            names = os.listdir(parent)
        except FileNotFoundError:
            continue
        for name in names:
            owner = parse_owner(name)
            if owner is not None and is_dead(owner, process_state(owner.pid), namespace):
                path = f"{parent}/{name}"
                if not holds_us(path):
                    left.append(path)
    deadline = time.monotonic() + SWEEP_SECONDS
    for path in left:
        forbid_forks(path)
    for path in left:
        kill_all(path, deadline)
    return tuple(path for path in left if remove_tree(path))


def holds_us(path: str) -> bool:
    """Whether this very process lives below a directory, as a program started from inside a leftover run would."""
    for directory in subtree(path):
        with contextlib.suppress(FileNotFoundError), opened(directory) as fd:
            if os.getpid() in members(fd):
                return True
    return False


def forbid_forks(path: str) -> None:
    """Stop a leftover fork bomb from outrunning the killing, where the pids controller is there to stop it."""
    for directory in subtree(path):
        with contextlib.suppress(OSError), opened(directory) as fd:
            write_at(fd, "pids.max", b"0")


def kill_all(path: str, deadline: float) -> None:
    """SIGKILL every process below one of our own directories and wait until they are dead or the deadline passes."""
    with contextlib.suppress(OSError), opened(path) as fd:
        write_at(fd, "cgroup.kill", b"1")  # v2 from 5.14: atomic, whatever forks meanwhile
    while True:
        waiting: list[int] = []
        try:
            for directory in subtree(path):
                waiting += kill_members(directory)
            if not waiting or time.monotonic() >= deadline:
                return
            poller = select.poll()
            for pidfd in waiting:
                poller.register(pidfd, select.POLLIN)
            poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
        finally:
            for pidfd in waiting:
                os.close(pidfd)


def kill_members(directory: str) -> list[int]:
    """SIGKILL the members of one cgroup; return their pidfds.

    A pid may be reused between reading and killing: it is pinned by a pidfd and must still be listed after that.
    """
    pinned: dict[int, int] = {}
    try:
        with opened(directory) as fd:
            for pid in members(fd):
                with contextlib.suppress(OSError):
                    pinned[pid] = os.pidfd_open(pid)
            still = set(members(fd))
    except FileNotFoundError:
        still = set()
    killed: list[int] = []
    for pid, pidfd in pinned.items():
        if pid in still and not exited(pidfd):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            killed.append(pidfd)
        else:
            os.close(pidfd)
    return killed


def exited(pidfd: int) -> bool:
    """Whether the process of a pidfd is dead already, a zombie included."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def members(directory: int) -> tuple[int, ...]:
    """Return the pids in a cgroup, however many there are; none when it was removed meanwhile."""
    try:
        fd = os.open("cgroup.procs", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        with open(fd, "rb") as file:
            return tuple(int(line) for line in file)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):  # ENODEV: removed between opening and reading
            raise
        return ()


def remove_tree(path: str) -> bool:
    """Remove a cgroup and those below it; False while one of them is busy."""
    gone = True
    for directory in reversed(subtree(path)):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                raise
            gone = False
    return gone


def subtree(path: str) -> list[str]:
    """Return a cgroup and every one below it, parents first."""
    found = [path]
    for directory in found:
        with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
            found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


@contextlib.contextmanager
def opened(directory: str) -> Iterator[int]:
    """Hold a directory fd for the length of a with block."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
