"""The files a session keeps between runs: read by the next guest as an overlay's lower, written only by commits.

`<home>/workspace/projects/<id>/`, or `<home>/workspace/tenants/<tenant>/projects/<id>/` for a tenant other than the
local one, holds `work`, `inputs`, `artifacts`, `snapshots` once there are any and, for commits, `staging` and `lock`.
As root, each session has a host uid of its own, and its runs must be given that uid: an overlay keeps the owner of a
file it copies up, so a guest can change what an earlier run left only if both were the same host user.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ringfence.authority.caller import LOCAL, check_tenant
from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.workspaces.acting import Owner, acting_as
from ringfence.workspaces.beneath import exchange, make_parents, open_beneath
from ringfence.workspaces.commit import MOST_ENTRIES, CommitReport, commit, empty, survey, totals_after
from ringfence.workspaces.ids import SESSION_UIDS
from ringfence.workspaces.touching import ANY_AMOUNT, Amount

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
MOST_PROJECTS: Final = 10_000
"""How many projects a tenant has at most: each is a directory and a host user of its own."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session's work directory holds."""

    bytes: int
    inodes: int


class SessionWorkspace:
    """One session's directories, held open by descriptor."""

    def __init__(self, session_id: str, directory_fd: int) -> None:
        """Take over `directory_fd`, in which `create` has made everything."""
        self.id = session_id
        self._directory_fd = directory_fd
        self.work_fd, self.inputs_fd, self.artifacts_fd, self.staging_fd = _open_all(
            directory_fd, "work", "inputs", "artifacts", "staging"
        )

    @classmethod
    def create(cls, home: Path, session_id: str, *, tenant: str = LOCAL) -> Self:
        """Open the session's workspace below `home`, making it at first use.

        Raises:
            InvalidRequest: `session_id` is not one plain path segment, or `tenant` none.
            QuotaExceeded: The tenant has as many projects as it may.
            PathTraversalError: Something below `home` was replaced by a symlink.
        """
        if not is_plain_name(session_id):
            raise InvalidRequest(f"session id {session_id[:100]!a} is not a plain name", reason="invalid_session_id")
        check_tenant(tenant)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home_fd = os.open(home, _DIRECTORY | os.O_CLOEXEC)
        try:
            directory_fd = _open_project(home_fd, session_id, tenant)
            try:
                with _locked(directory_fd):
                    _make_directories(home_fd, directory_fd)
                return cls(session_id, directory_fd)
            except BaseException:
                os.close(directory_fd)
                raise
        finally:
            os.close(home_fd)

    @property
    def directory_fd(self) -> int:
        """The project's own directory, where no guest can reach."""
        return self._directory_fd

    @property
    def owner(self) -> Owner | None:
        """The host uid and gid that every run of this session must have; `None` when that is the caller's own."""
        status = os.fstat(self.work_fd)
        return None if status.st_uid == os.geteuid() else (status.st_uid, status.st_gid)

    def generation(self) -> int:
        """Return a number that changes before and after every change of `work`.

        An overlay caches what it looked up, so a worker that was parked over another generation is not to be used.
        """
        read = _read_generation(self._directory_fd)
        # after the number: a directory that is replaced from now on has another
        self._find_work()
        return read

    def commit(
        self,
        upper_fd: int,
        *,
        max_bytes: int,
        max_inodes: int,
        denials: Denials = NO_DENIALS,
        most: Amount = ANY_AMOUNT,
    ) -> CommitReport:
        """Apply what a dead run wrote; commits of one session wait for each other.

        Raises:
            ChangeDenied: It touches what `denials` says nobody may change; nothing was changed.
            ChangesTooLarge: It changes more than `most`; nothing was changed.
            QuotaExceeded: The session would grow beyond its quota; nothing was changed.
        """
        with self.changing():
            return commit(
                upper_fd,
                self.work_fd,
                staging_fd=self.staging_fd,
                max_bytes=max_bytes,
                max_inodes=max_inodes,
                denials=denials,
                most=most,
            )

    def usage(self) -> Usage:
        """Measure the work directory."""
        with self.using():
            size, inodes = totals_after(survey(self.work_fd, max_entries=MOST_ENTRIES, layered=False), ())
        return Usage(size, inodes)

    def reset(self) -> None:
        """Put an empty work directory in the place of this one, in one step."""
        self.replace_work(lambda _: None)

    def replace_work(self, fill: Callable[[int], None]) -> None:
        """Put another directory in the place of `work`, in one step: whoever looks finds the old one or the new, whole.

        `fill` is given the new directory, empty, and acts as the session's owner. What it raises leaves everything as
        it was; so does a host that dies before the step, and one that dies after it has made the change. What the disk
        has of it when the power fails is up to the kernel, as with everything a commit writes.
        """
        with self._changing() as owner:
            try:
                with acting_as(owner):
                    empty(self.staging_fd)
                    os.mkdir("work", 0o700, dir_fd=self.staging_fd)
                    made = open_beneath(self.staging_fd, "work", _DIRECTORY)
                    try:
                        fill(made)
                        os.fchmod(made, 0o755)
                    finally:
                        os.close(made)
                # as ourselves: the session's owner may not write where its directories are
                exchange(self.staging_fd, "work", self._directory_fd, "work")
                self._find_work()
            finally:
                with acting_as(owner):
                    empty(self.staging_fd)

    @contextmanager
    def holding(self) -> Iterator[Owner | None]:
        """Keep everybody from changing `work`, and yield its owner; nothing is changed, and nobody acts as him yet."""
        with _locked(self._directory_fd):
            self._find_work()
            yield self.owner

    def open_snapshots(self, *, make: bool = False) -> int | None:
        """Open where this session's snapshots are; nothing where there never was one, unless it is to be made."""
        try:
            return open_beneath(self._directory_fd, "snapshots", _DIRECTORY)
        except FileNotFoundError:
            if not make:
                return None
        with suppress(FileExistsError):
            os.mkdir("snapshots", 0o700, dir_fd=self._directory_fd)
        return open_beneath(self._directory_fd, "snapshots", _DIRECTORY)

    def close(self) -> None:
        """Give up the descriptors; the files stay."""
        for fd in (self.work_fd, self.inputs_fd, self.artifacts_fd, self.staging_fd, self._directory_fd):
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open_beside(self, name: str) -> int:
        """Open a directory of ours beside `work`, made at first use: its owner's to write in, and no guest's to see."""
        with _locked(self._directory_fd):
            try:
                return open_beneath(self._directory_fd, name, _DIRECTORY)
            except FileNotFoundError:
                os.mkdir(name, 0o700, dir_fd=self._directory_fd)
            fd = open_beneath(self._directory_fd, name, _DIRECTORY)
            self._find_work()
            if self.owner is not None:
                os.fchown(fd, *self.owner)
            return fd

    @contextmanager
    def using(self) -> Iterator[None]:
        """Act as the owner of the directory that is `work` now; others may change it meanwhile."""
        self._find_work()
        with acting_as(self.owner):
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the session for a change of `work`, acting as its owner; parked workers learn that they are stale."""
        with self._changing() as owner, acting_as(owner):
            yield

    @contextmanager
    def _changing(self) -> Iterator[Owner | None]:
        with _locked(self._directory_fd) as lock:
            self._find_work()
            before = _read_generation(self._directory_fd)
            os.pwrite(lock, b"%020d" % (before + 1), 0)
            try:
                yield self.owner
            finally:
                os.pwrite(lock, b"%020d" % (before + 2), 0)

    def _find_work(self) -> None:
        """Hold on to the directory that is `work` now: somebody may have put another one in its place."""
        present = os.stat("work", dir_fd=self._directory_fd, follow_symlinks=False)
        held = os.fstat(self.work_fd)
        if (present.st_dev, present.st_ino) != (held.st_dev, held.st_ino):
            found = open_beneath(self._directory_fd, "work", _DIRECTORY)
            try:
                os.dup2(found, self.work_fd, inheritable=False)  # the same number: others were given it
            finally:
                os.close(found)


def project_path(project_id: str, tenant: str) -> str:
    """Return where a project lies, relative to the workspace directory of the home."""
    return f"projects/{project_id}" if tenant == LOCAL else f"tenants/{tenant}/projects/{project_id}"


def is_plain_name(name: str) -> bool:
    """Whether `name` can be one segment of a path, and nothing else."""
    return _ID.match(name) is not None


def _open_project(home_fd: int, session_id: str, tenant: str) -> int:
    path = f"workspace/{project_path(session_id, tenant)}"
    try:
        return open_beneath(home_fd, path, _DIRECTORY)
    except FileNotFoundError:
        above = make_parents(home_fd, path, 0o700)
    try:
        fcntl.flock(above, fcntl.LOCK_EX)  # two who come at once are counted one after the other
        with os.scandir(above) as listing:
            count = sum(1 for _ in islice(listing, MOST_PROJECTS))
        if count >= MOST_PROJECTS:
            raise QuotaExceeded(
                f"there are {MOST_PROJECTS} projects already",
                reason="projects",
                limit=MOST_PROJECTS,
                fix="use one there is; an operator can remove those that nobody needs",
            )
        return make_parents(home_fd, f"{path}/work", 0o700)
    finally:
        os.close(above)


def _open_all(directory_fd: int, *names: str) -> list[int]:
    """Open these directories, or none."""
    opened: list[int] = []
    try:
        for name in names:
            opened.append(open_beneath(directory_fd, name, _DIRECTORY))  # noqa: PERF401  those before are to be closed
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise
    return opened


@contextmanager
def _locked(directory_fd: int) -> Iterator[int]:
    # Beside the work directory, never inside: the guest must not be able to hold or replace it.
    lock = open_beneath(directory_fd, "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _read_generation(directory_fd: int) -> int:
    lock = open_beneath(directory_fd, "lock", os.O_RDONLY)
    try:
        return int(os.pread(lock, 20, 0) or b"0")
    finally:
        os.close(lock)


def _make_directories(home_fd: int, directory_fd: int) -> None:
    present = set(os.listdir(directory_fd))
    if {"work", "staging", "inputs", "artifacts"} <= present:
        return
    # A creation that was interrupted starts again: nothing has been committed to it yet.
    owner = _next_owner(home_fd) if os.geteuid() == 0 else None
    for name, mode in (("inputs", 0o700), ("staging", 0o700), ("work", 0o755), ("artifacts", 0o700)):
        if name not in present:
            os.mkdir(name, mode, dir_fd=directory_fd)
        fd = open_beneath(directory_fd, name, _DIRECTORY)
        try:
            os.fchmod(fd, mode)
            if owner is not None and name in ("staging", "work"):
                os.fchown(fd, *owner)
        finally:
            os.close(fd)


def _next_owner(home_fd: int) -> Owner:
    """Take the next free session uid of this home; the first is random, so that two homes rarely share any."""
    workspace_fd = open_beneath(home_fd, "workspace", _DIRECTORY)
    try:
        counter = open_beneath(workspace_fd, "next-uid", os.O_RDWR | os.O_CREAT, 0o600)
    finally:
        os.close(workspace_fd)
    try:
        fcntl.flock(counter, fcntl.LOCK_EX)
        index = int(os.pread(counter, 20, 0) or secrets.randbelow(len(SESSION_UIDS)))
        os.pwrite(counter, b"%020d" % ((index + 1) % len(SESSION_UIDS)), 0)
    finally:
        os.close(counter)
    return SESSION_UIDS[index], SESSION_UIDS[index]
