"""What runs would change in a project, waiting beside its files until somebody commits or discards it.

`<project>/proposals/<exec_id>/` holds `proposal.json`, `diff.txt` and, by the number of its step, each file and link a
run wrote. It takes its name when it is whole. A project has few of them, for a limited time and within its own quota:
the oldest give way.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest, PathTraversalError, Unavailable
from ringfence.outcome import Pending
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.beneath import open_beneath, open_parent, open_regular
from ringfence.workspaces.commit import (
    MOST_ENTRIES,
    CommitReport,
    apply,
    empty,
    require_allowed,
    require_quota,
    size_of,
    stage,
    survey,
    survey_upper,
)
from ringfence.workspaces.free_space import require_free_space
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.proposal_diff import shown
from ringfence.workspaces.proposal_form import MOST_BYTES, Marks, Proposal, from_bytes, to_bytes
from ringfence.workspaces.session import SessionWorkspace, is_plain_name
from ringfence.workspaces.survey import Kind
from ringfence.workspaces.touching import ANY_AMOUNT, Amount, touched

MOST_PROPOSALS = 16
MOST_AGE_MS = 7 * 24 * 3600 * 1000
MOST_NAMED = 20

_SHELF = "proposals"
_DOCUMENT, _DIFF = "proposal.json", "diff.txt"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_MOST_DIFF_BYTES = 4 * 1024 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds for whoever changes a project: its quota, and what nobody may change."""

    max_bytes: int
    max_inodes: int
    denials: Denials = NO_DENIALS
    most: Amount = ANY_AMOUNT
    """How much one run may change."""

    @classmethod
    def of(cls, limits: Limits, denials: Denials) -> Self:
        """Return the bounds that the limits of a profile set."""
        most = Amount(limits.changed_paths, limits.changed_bytes)
        return cls(limits.disk_bytes, limits.inodes, denials, most)


def look(session: SessionWorkspace, exec_id: str, upper_fd: int, bounds: Bounds) -> Pending:
    """Tell what a dead run would change, and keep nothing of it.

    Raises:
        ChangeDenied: It touches what nobody may change.
        ChangesTooLarge: It changes more than one run may.
        QuotaExceeded: The project would outgrow its quota.
    """
    with session.holding() as owner, acting_as(owner):
        return _examined(session, exec_id, upper_fd, bounds, fresh=True).pending


def propose(
    session: SessionWorkspace, exec_id: str, upper_fd: int, bounds: Bounds, *, fresh: bool
) -> tuple[Pending, tuple[str, ...]]:
    """Keep what a dead run would change until somebody decides; return it, and the older proposals that gave way.

    `fresh` says that nobody has changed the project since the run began.

    Raises:
        ChangeDenied: It touches what nobody may change; nothing was kept.
        ChangesTooLarge: It changes more than one run may; nothing was kept.
        QuotaExceeded: The project would outgrow its quota, or the disk is too full; nothing was kept.
    """
    if not is_plain_name(exec_id):
        raise InvalidRequest(f"{exec_id[:100]!a} is not the name of an execution", reason="invalid_name")
    with _shelf(session) as shelf, session.holding() as owner, acting_as(owner):
        proposal = _examined(session, exec_id, upper_fd, bounds, fresh=fresh)
        proposal = replace(proposal, pending=replace(proposal.pending, expires_at_ms=proposal.made_ms + MOST_AGE_MS))
        size = size_of(proposal.steps)
        gone = _make_room(shelf, size, bounds.max_bytes, proposal.made_ms)
        require_free_space(shelf, size)
        draft = f".{secrets.token_hex(16)}"
        os.mkdir(draft, 0o700, dir_fd=shelf)
        try:
            _fill(shelf, draft, upper_fd, proposal)
            os.rename(draft, exec_id, src_dir_fd=shelf, dst_dir_fd=shelf)
        except BaseException:
            shutil.rmtree(draft, dir_fd=shelf, ignore_errors=True)
            raise
        os.fsync(shelf)
    return proposal.pending, gone


def commit(
    session: SessionWorkspace, exec_id: str, bounds: Bounds, *, force: bool = False
) -> tuple[Pending, CommitReport]:
    """Apply a proposal, and forget it; either all of it is applied or, but for a host that dies, nothing.

    Raises:
        InvalidRequest: There is no such proposal (`not_found`), or somebody else changed what it touches since the run
            began and `force` does not say that this is to be overwritten (`conflict`).
        ChangeDenied: It touches what nobody may change by now.
        ChangesTooLarge: It changes more than one run may by now.
        QuotaExceeded: The project would outgrow its quota, or the disk is too full.
    """
    with _shelf(session) as shelf, session.changing():
        with _opened(shelf, exec_id) as directory:
            proposal = _read(directory)
            present = survey(session.work_fd, max_entries=MOST_ENTRIES, layered=False)
            changes = touched(present, proposal.steps)
            require_allowed(changes, bounds.denials, bounds.most)
            if not force:
                _require_unchanged(proposal, _marks(session.work_fd, changes))
            size, inodes = require_quota(
                present, proposal.steps, max_bytes=bounds.max_bytes, max_inodes=bounds.max_inodes
            )
            empty(session.staging_fd)
            for index, step in enumerate(proposal.steps):
                if step.kind in (Kind.FILE, Kind.LINK):
                    # a second name: should the host die here, the proposal is still whole
                    name = str(index)
                    os.link(name, name, src_dir_fd=directory, dst_dir_fd=session.staging_fd, follow_symlinks=False)
            report = apply(proposal.steps, session.work_fd, session.staging_fd, bytes_after=size, inodes_after=inodes)
        shutil.rmtree(exec_id, dir_fd=shelf)
    return proposal.pending, report


def discard(session: SessionWorkspace, exec_id: str) -> Pending:
    """Forget a proposal, and return what it was.

    Raises:
        InvalidRequest: There is no such proposal (`not_found`).
    """
    with _shelf(session) as shelf, session.holding() as owner, acting_as(owner):
        with _opened(shelf, exec_id) as directory:
            pending = _read(directory).pending
        shutil.rmtree(exec_id, dir_fd=shelf)
    return pending


def waiting(session: SessionWorkspace) -> list[Pending]:
    """Return the proposals of a project, the oldest first."""
    found: list[Proposal] = []
    with _shelf(session) as shelf, session.holding() as owner, acting_as(owner):
        _make_room(shelf, 0, None, _now_ms())
        for name in filter(is_plain_name, os.listdir(shelf)):
            with suppress(InvalidRequest, Unavailable), _opened(shelf, name) as directory:
                found.append(_read(directory))
    return [each.pending for each in sorted(found, key=lambda proposal: proposal.made_ms)]


# --- what a run would do ---


def _examined(session: SessionWorkspace, exec_id: str, upper_fd: int, bounds: Bounds, *, fresh: bool) -> Proposal:
    steps = survey_upper(upper_fd, bounds.max_inodes)
    present = survey(session.work_fd, max_entries=MOST_ENTRIES, layered=False)
    changes = touched(present, steps)
    require_allowed(changes, bounds.denials, bounds.most)
    require_quota(present, steps, max_bytes=bounds.max_bytes, max_inodes=bounds.max_inodes)
    pending = replace(shown(session.work_fd, upper_fd, changes), exec_id=exec_id, size=size_of(steps))
    return Proposal(pending, tuple(steps), _marks(session.work_fd, changes) if fresh else None, _now_ms())


def _marks(work_fd: int, paths: Iterable[bytes]) -> Marks:
    return {path: _mark(work_fd, path) for path in paths}


def _mark(work_fd: int, path: bytes) -> str | None:
    """Return what no change of the path leaves as it is; of a directory only that it is one, and its permissions."""
    try:
        parent, name = open_parent(work_fd, path)
    except (FileNotFoundError, NotADirectoryError, PathTraversalError):
        return None
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(parent)
    if stat.S_ISDIR(status.st_mode):
        return f"directory {stat.S_IMODE(status.st_mode):o}"
    # nobody but the kernel sets the time of change
    return f"{status.st_mode:o} {status.st_size} {status.st_ino} {status.st_ctime_ns}"


def _require_unchanged(proposal: Proposal, now: Marks) -> None:
    if proposal.base is None:
        raise InvalidRequest(
            "somebody changed the project while the run was under way, so nobody knows what it was made over",
            reason="conflict",
            fix="run it again, or commit with force",
        )
    differing = sorted(path for path in {**proposal.base, **now} if proposal.base.get(path, "") != now.get(path, ""))
    if differing:
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        names = ", ".join(f"work/{harmless_path(path)}" for path in differing[:MOST_NAMED])
        raise InvalidRequest(
            f"changed since the run began: {names}{more}",
            reason="conflict",
            fix="run it again, or commit with force",
            count=len(differing),
        )


# --- on the disk ---


@contextmanager
def _shelf(session: SessionWorkspace) -> Iterator[int]:
    fd = session.open_beside(_SHELF)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _opened(shelf: int, exec_id: str) -> Iterator[int]:
    """Open one proposal; one whose time is over is as if it had never been."""
    unknown = InvalidRequest(
        "there is no such proposal: it was committed, discarded, has expired, or never was", reason="not_found"
    )
    if not is_plain_name(exec_id):
        raise unknown
    try:
        directory = open_beneath(shelf, exec_id, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PathTraversalError):
        raise unknown from None
    try:
        if _is_over(directory, _now_ms()):
            raise unknown
        yield directory
    finally:
        os.close(directory)


def _fill(shelf: int, draft: str, upper_fd: int, proposal: Proposal) -> None:
    directory = open_beneath(shelf, draft, _DIRECTORY)
    try:
        for index, step in enumerate(proposal.steps):
            stage(upper_fd, directory, step, str(index))
        _write(directory, _DIFF, proposal.pending.diff.encode("utf-8", "surrogatepass"))
        _write(directory, _DOCUMENT, to_bytes(proposal))
        # at once: to wait for each of ten thousand files would take minutes
        if _libc.syncfs(ctypes.c_int(directory)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(directory)


def _write(directory: int, name: str, content: bytes) -> None:
    fd = open_beneath(directory, name, _NEW_FILE, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def _read(directory: int) -> Proposal:
    diff = _content(directory, _DIFF, _MOST_DIFF_BYTES).decode("utf-8", "replace")
    return from_bytes(_content(directory, _DOCUMENT, MOST_BYTES), diff)


def _content(directory: int, name: str, most: int) -> bytes:
    try:
        fd = open_regular(directory, name)
    except (OSError, PathTraversalError) as error:
        raise Unavailable("a proposal is not what was written", reason="damaged") from error
    with open(fd, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise Unavailable("a proposal is not what was written", reason="damaged")
    return content


def _make_room(shelf: int, size: int, most_bytes: int | None, now_ms: int) -> tuple[str, ...]:
    """Remove what is over, drafts of a host that died, and the oldest until there is room for one more."""
    there: list[tuple[int, str, int]] = []
    for name in os.listdir(shelf):
        try:
            directory = open_beneath(shelf, name, _DIRECTORY)
        except (FileNotFoundError, NotADirectoryError, PathTraversalError):
            continue
        try:
            if is_plain_name(name) and not _is_over(directory, now_ms):
                there.append((os.fstat(directory).st_mtime_ns, name, _bytes_in(directory)))
                continue
        finally:
            os.close(directory)
        shutil.rmtree(name, dir_fd=shelf)
    if most_bytes is None:
        return ()
    gone: list[str] = []
    for _, name, _ in sorted(there):
        left = [each for each in there if each[1] not in gone]
        if len(left) < MOST_PROPOSALS and sum(each[2] for each in left) + size <= most_bytes:
            break
        shutil.rmtree(name, dir_fd=shelf)
        gone.append(name)
    return tuple(gone)


def _is_over(directory: int, now_ms: int) -> bool:
    # of the directory: nothing is written in it after it has its name
    return now_ms - os.fstat(directory).st_mtime_ns // 1_000_000 > MOST_AGE_MS


def _bytes_in(directory: int) -> int:
    return sum(os.stat(name, dir_fd=directory, follow_symlinks=False).st_size for name in os.listdir(directory))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
