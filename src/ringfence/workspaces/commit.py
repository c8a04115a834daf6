"""Apply a dead run's upper directory to its session's work directory: quota first, content second, names last."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.limits import too_much
from ringfence.dataclass import dataclass, field
from ringfence.errors import CapabilityBlocked, QuotaExceeded
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.free_space import require_free_space
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.survey import MOST_ENTRIES as MOST_ENTRIES
from ringfence.workspaces.survey import Kind, Step
from ringfence.workspaces.survey import survey as survey
from ringfence.workspaces.touching import ANY_AMOUNT, Amount, Touched, amount, touched
from ringfence.workspaces.tree import open_readable

_CHUNK = 1024 * 1024
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


class ChangeDenied(CapabilityBlocked):
    """What a run changed touches what nobody may change, so none of it is kept."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        """`paths` are relative to the work directory, and harmless."""
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        super().__init__(
            f"the policy lets nobody change work/{paths[0]}{more}", reason="change_denied", count=len(paths)
        )
        self.paths = paths


class ChangesTooLarge(CapabilityBlocked):
    """A run changed more than one run may, so none of it is kept."""

    def __init__(self, wanted: Amount, most: Amount) -> None:
        """`wanted` is more than `most` in one of its numbers."""
        super().__init__(
            too_much((wanted.paths, wanted.bytes), (most.paths, most.bytes)),
            reason="changes_too_large",
            fix="change less at a time, or raise max_changed_paths and max_changed_bytes in the policy",
            paths=wanted.paths,
            bytes=wanted.bytes,
            max_changed_paths=most.paths,
            max_changed_bytes=most.bytes,
        )
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What a commit did; `bytes` and `inodes` are the session's totals after it."""

    written: int
    deleted: int
    dropped: tuple[str, ...]
    bytes: int
    inodes: int


@dataclass(slots=True)
class _Node:
    size: int
    is_directory: bool
    children: dict[bytes, _Node] = field(default_factory=dict)

    def totals(self) -> tuple[int, int]:
        below = [child.totals() for child in self.children.values()]
        return self.size + sum(size for size, _ in below), 1 + sum(count for _, count in below)


def commit(
    upper_fd: int,
    target_fd: int,
    *,
    staging_fd: int,
    max_bytes: int,
    max_inodes: int,
    denials: Denials = NO_DENIALS,
    most: Amount = ANY_AMOUNT,
) -> CommitReport:
    """Apply the upper of a dead run to `target_fd`; the caller holds the session's lock.

    Every file is first copied into `staging_fd` (same filesystem), then renamed into place: a full disk changes
    nothing, and no reader sees half a file. A host that dies during the renames leaves a mixture of whole files.
    Symlinks are recreated as they are, wherever they point: the host follows none. Hard links become independent
    files. Setuid, setgid and sticky bits, owners and attributes are not taken over; fifos, sockets and devices are
    dropped, as is what they replaced.

    Raises:
        ChangeDenied: It touches what `denials` says nobody may change; nothing was changed.
        ChangesTooLarge: It changes more than `most`; nothing was changed.
        QuotaExceeded: The session would hold more than `max_bytes` or `max_inodes`, or the disk is too full; nothing
            was changed.
    """
    steps = survey_upper(upper_fd, max_inodes)
    present = survey(target_fd, max_entries=MOST_ENTRIES, layered=False)
    if denials.changes or most != ANY_AMOUNT:
        require_allowed(touched(present, steps), denials, most)
    size, inodes = require_quota(present, steps, max_bytes=max_bytes, max_inodes=max_inodes)
    empty(staging_fd)
    require_free_space(staging_fd, size_of(steps))
    for index, step in enumerate(steps):
        stage(upper_fd, staging_fd, step, str(index))
    return apply(steps, target_fd, staging_fd, bytes_after=size, inodes_after=inodes)


def survey_upper(upper_fd: int, max_inodes: int) -> list[Step]:
    """List what a dead run wrote; marks of deletion are entries of the upper but not of the session: hence twice."""
    return survey(upper_fd, max_entries=2 * max_inodes, layered=True)


def require_allowed(changes: Mapping[bytes, Touched], denials: Denials, most: Amount) -> None:
    """Refuse to touch what nobody may change, and to change more than one run may.

    Raises:
        ChangeDenied: Naming the paths.
        ChangesTooLarge: Saying how much it is.
    """
    names = {os.fsdecode(path): path for path in changes}
    refused = denials.denied_changes(sorted(names))
    if refused:
        raise ChangeDenied(tuple(harmless_path(names[name]) for name in refused))
    wanted = amount(changes)
    if not wanted.is_within(most):
        raise ChangesTooLarge(wanted, most)


def require_quota(
    present: Sequence[Step], steps: Sequence[Step], *, max_bytes: int, max_inodes: int
) -> tuple[int, int]:
    """Return the bytes and inodes a work directory will hold.

    Raises:
        QuotaExceeded: That is more than it may.
    """
    size, inodes = totals_after(present, steps)
    if size > max_bytes or inodes > max_inodes:
        raise QuotaExceeded(
            "the session's work directory would outgrow its quota",
            reason="workspace_disk",
            bytes=size,
            max_bytes=max_bytes,
            inodes=inodes,
            max_inodes=max_inodes,
        )
    return size, inodes


def size_of(steps: Iterable[Step]) -> int:
    """Return how many bytes are to be copied."""
    return sum(step.size for step in steps if step.kind is Kind.FILE)


def apply(
    steps: Sequence[Step], target_fd: int, staging_fd: int, *, bytes_after: int, inodes_after: int
) -> CommitReport:
    """Put what was staged under the numbers of its steps into its places."""
    for index, step in enumerate(steps):
        _apply(target_fd, staging_fd, step, str(index))
    return CommitReport(
        written=sum(step.kind in (Kind.FILE, Kind.LINK) for step in steps),
        deleted=sum(step.kind in (Kind.WHITEOUT, Kind.OPAQUE) for step in steps),
        dropped=tuple(harmless_path(step.path) for step in steps if step.kind is Kind.SPECIAL),
        bytes=bytes_after,
        inodes=inodes_after,
    )


def totals_after(present: Iterable[Step], steps: Iterable[Step]) -> tuple[int, int]:
    """Return the bytes and inodes of a work directory of `present` entries once `steps` are applied (parents first)."""
    root = _Node(size=0, is_directory=True)
    for step in (*present, *steps):
        *parents, name = step.path.split(b"/")
        parent = root
        for part in parents:
            parent = parent.children[part]
        _put(parent.children, name, step)
    size, inodes = root.totals()
    return size, inodes - 1


def _put(siblings: dict[bytes, _Node], name: bytes, step: Step) -> None:
    match step.kind:
        case Kind.FILE | Kind.LINK:
            siblings[name] = _Node(size=step.size, is_directory=False)
        case Kind.DIRECTORY if name in siblings and siblings[name].is_directory:
            pass
        case Kind.DIRECTORY | Kind.OPAQUE:
            siblings[name] = _Node(size=0, is_directory=True)
        case Kind.WHITEOUT | Kind.SPECIAL:
            siblings.pop(name, None)


def empty(directory_fd: int) -> None:
    """Remove everything below a directory of ours."""
    for name in os.listdir(directory_fd):
        remove(directory_fd, os.fsencode(name))


def stage(upper_fd: int, staging_fd: int, step: Step, staged: str) -> None:
    """Copy what a step brings, if it brings anything, to a name of ours."""
    if step.kind not in (Kind.FILE, Kind.LINK):
        return
    with parent_of(upper_fd, step.path) as (parent, name):
        if step.kind is Kind.LINK:
            os.symlink(os.readlink(name, dir_fd=parent), os.fsencode(staged), dir_fd=staging_fd)
            return
        source = open_readable(parent, name)
    try:
        copy = open_beneath(staging_fd, staged, _NEW_FILE, 0o600)
        try:
            _copy(source, copy, step.size)
            status = os.fstat(source)
            os.fchmod(copy, step.mode & 0o777)
            os.utime(copy, ns=(status.st_mtime_ns, status.st_mtime_ns))  # make and its like compare them
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _copy(source: int, copy: int, size: int) -> None:
    left = size  # never more than the quota was checked for
    while left and (chunk := os.read(source, min(_CHUNK, left))):
        left -= len(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(copy, rest) :]


def _apply(target_fd: int, staging_fd: int, step: Step, staged: str) -> None:
    with parent_of(target_fd, step.path) as (parent, name):
        there = _mode_of(parent, name)
        is_directory = there is not None and stat.S_ISDIR(there)
        if step.kind in (Kind.FILE, Kind.LINK):
            if is_directory:
                remove(parent, name)
            os.rename(staged, name, src_dir_fd=staging_fd, dst_dir_fd=parent)
            return
        if there is not None and not (step.kind is Kind.DIRECTORY and is_directory):
            remove(parent, name)
            is_directory = False
        if step.kind in (Kind.DIRECTORY, Kind.OPAQUE):
            if not is_directory:
                os.mkdir(name, 0o700, dir_fd=parent)
            fd = open_readable(parent, name, os.O_RDONLY | os.O_DIRECTORY)
            os.fchmod(fd, step.mode & 0o777 | 0o700)  # ours to walk again
            os.close(fd)


@contextmanager
def parent_of(root_fd: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Open the directory that an entry lies in, through no link."""
    parent, _, name = path.rpartition(b"/")
    fd = open_beneath(root_fd, parent, os.O_PATH | os.O_DIRECTORY) if parent else os.dup(root_fd)
    try:
        yield fd, name
    finally:
        os.close(fd)


def _mode_of(parent: int, name: bytes) -> int | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def remove(parent: int, name: bytes) -> None:
    """Remove an entry, a directory with all below it, following no link; nothing where there is none."""
    mode = _mode_of(parent, name)
    if mode is not None and stat.S_ISDIR(mode):
        shutil.rmtree(os.fsdecode(name), dir_fd=parent)  # by descriptors: follows no link
    elif mode is not None:
        os.unlink(name, dir_fd=parent)
