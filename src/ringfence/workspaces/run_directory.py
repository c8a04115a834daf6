"""The one file system of a run, held by the host through a descriptor of its root."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.authority.levels import Commit
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import QuotaExceeded
from ringfence.outcome import FileChanges, Pending
from ringfence.ports import EVERYTHING, Harvest, Keeping

# What moves files is imported where it is used: most runs neither bring nor leave any.
if TYPE_CHECKING:
    from ringfence.masking import Masks
    from ringfence.workspaces.changes import Changes
    from ringfence.workspaces.collect import Collection
    from ringfence.workspaces.session import SessionWorkspace

MAX_WRITTEN = 10_000
"""How many entries of a work directory are looked at for the list of what was written."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Kept:
    """What became of a session's changes."""

    kept: bool = True
    pending: Pending | None = None
    denied: tuple[str, ...] = ()
    excess: tuple[int, int] | None = None


@dataclass(slots=True)
class RunDirectory:
    """Inputs go in before the guest starts; everything comes out after its last process is dead."""

    owner: tuple[int, int] | None
    session: SessionWorkspace | None = None
    generation: int = 0
    """Which state of the session's files this run was parked over."""
    work: str = "upper"
    """What the guest sees as `/workspace/work`."""
    only_grows: bool = True
    """Whether the guest can remove nothing that was there before it, so that a count of inodes tells what it made."""
    fd: int = field(default=-1, init=False)
    _placed: dict[str, int] = field(default_factory=dict, init=False)
    _inodes_when_empty: int = field(default=0, init=False)

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Write `files` into the work directory and `inputs` where the guest can only read."""
        if files:
            self._place(self.work, files, "work")
            with _Opened(self.fd, self.work) as upper:
                self._placed = {name: _changed_at(upper, name) for name in self._changes(upper).files}
        if inputs:
            self._place("inputs", inputs, "inputs")

    def count_as_placed(self, paths: Iterable[bytes]) -> None:
        """Take these files of the work directory, as they are now, for what the caller placed and nobody touched."""
        from ringfence.workspaces.names import harmless_path

        with _Opened(self.fd, self.work) as upper:
            self._placed = {name: _changed_at(upper, name) for name in map(harmless_path, paths)}

    def is_fresh(self) -> bool:
        """Whether the session's files are still what they were when the run was parked over them."""
        return self.session is None or self.session.generation() == self.generation

    def arrive(self, fd: int) -> None:
        """Take over the file system once its box has made it, and count what it holds while it is empty."""
        self.fd = fd
        self._inodes_when_empty = _inodes(fd)

    def has_files(self) -> bool:
        """Whether the guest or its caller left anything in the work directory or among the artifacts."""
        # a file system on which nothing was made, or nothing stayed, needs no closer look; a guest that could remove
        # one directory of ours would hide a file of its own behind it
        if self.only_grows and _inodes(self.fd) == self._inodes_when_empty:
            return False
        for name in ("artifacts", self.work):
            with _Opened(self.fd, name) as directory:
                if not _is_empty(directory):
                    return True
        return False

    def _place(self, name: str, files: Mapping[str, bytes], under: str) -> None:
        from ringfence.workspaces.place import place

        with _Opened(self.fd, name) as directory:
            place(directory, files, owner=self.owner, under=under)

    def _changes(self, upper: int) -> Changes:
        from ringfence.workspaces.changes import written

        hides = None if self.session is None else self._hides
        return written(upper, max_entries=MAX_WRITTEN, layered=self.session is not None, hides=hides)

    def _hides(self, path: bytes) -> bool:
        """Whether the session has anything of this name."""
        from ringfence.workspaces.beneath import lies_beneath

        if self.session is None:
            return False
        with self.session.using():
            return lies_beneath(self.session.work_fd, path)

    def harvest(self, limits: Limits, keeping: Keeping = EVERYTHING) -> Harvest:
        """Read artifacts and changes; with a session, do with the changes as `keeping` says: all of them or none."""
        try:
            masked = self._mask(keeping.masks) if keeping.masks else ()
        except OSError as error:  # without its names: a guest names files after secrets
            why = f"they could not be searched for secrets ({os.strerror(error.errno or errno.EIO)})"
            return Harvest(
                notes=(f"the files of the run are lost: {why}",), changes=FileChanges(complete=False, kept=False)
            )
        found = self._artifacts(limits, keeping)
        notes = [*masked]
        notes += [f"artifact {lost.path} was not collected: {lost.reason}" for lost in found.skipped]
        if not found.complete:
            notes.append("artifacts beyond these lie too deep, or are too many to be named")
        kept = _Kept()
        with _Opened(self.fd, self.work) as upper:
            changes = self._changes(upper)
            sizes = dict(zip(changes.files, changes.sizes, strict=True))
            files = tuple(name for name in changes.files if self._touched(upper, name))
            if self.session is not None and changes:
                kept = self._keep(self.session, upper, limits, keeping, notes)
        if not changes.complete:
            notes.append(f"files_written lists the first {MAX_WRITTEN} entries only")
        more = FileChanges(
            sizes=tuple(sizes[name] for name in files),
            deleted=changes.deleted,
            uncollected=tuple((lost.path, lost.reason) for lost in found.skipped),
            complete=changes.complete and found.complete,
            kept=kept.kept,
            denied=kept.denied,
            excess=kept.excess,
        )
        changed = kept.pending is None and bool(changes)
        return Harvest(found.artifacts, files, tuple(notes), more, kept.pending, changed=changed)

    def _mask(self, masks: Masks) -> tuple[str, ...]:
        from ringfence.workspaces.acting import acting_as
        from ringfence.workspaces.masked import mask_files

        notes: list[str] = []
        for name in ("artifacts", self.work):
            with _Opened(self.fd, name) as directory, acting_as(self.owner):
                notes += mask_files(directory, masks)
        return tuple(dict.fromkeys(notes))

    def _artifacts(self, limits: Limits, keeping: Keeping) -> Collection:
        from ringfence.workspaces.collect import Skipped, collect

        with _Opened(self.fd, "artifacts") as directory:
            found = collect(
                directory,
                max_bytes=limits.artifact_bytes,
                max_count=limits.artifact_count,
                max_depth=limits.artifact_depth,
            )
        if keeping.artifacts is None:
            return found
        stay = tuple(artifact for artifact in found.artifacts if keeping.artifacts(artifact.path))
        lost = tuple(Skipped(artifact.path, "not_permitted") for artifact in found.artifacts if artifact not in stay)
        return replace(found, artifacts=stay, skipped=(*found.skipped, *lost))

    def _touched(self, upper: int, name: str) -> bool:
        before = self._placed.get(name)
        return before is None or _changed_at(upper, name) != before

    def _keep(
        self,
        session: SessionWorkspace,
        upper: int,
        limits: Limits,
        keeping: Keeping,
        notes: list[str],
    ) -> _Kept:
        from ringfence.workspaces import proposals
        from ringfence.workspaces.commit import ChangeDenied, ChangesTooLarge

        bounds = proposals.Bounds.of(limits, keeping.denials)
        try:
            if not _may_stay(session, upper, limits, keeping):
                notes.append("the changes to the session's files were not kept: the tool may not write all of them")
                return _Kept(False)
            match keeping.commit:
                case Commit.NEVER:
                    return _Kept(False, proposals.look(session, keeping.exec_id, upper, bounds))
                case Commit.ASK:
                    fresh = session.generation() == self.generation
                    pending, gone = proposals.propose(session, keeping.exec_id, upper, bounds, fresh=fresh)
                    notes += [f"the proposal of {exec_id} gave way to this one" for exec_id in gone]
                    return _Kept(False, pending)
                case Commit.ALWAYS:
                    pass
            report = session.commit(
                upper,
                max_bytes=limits.disk_bytes,
                max_inodes=limits.inodes,
                denials=keeping.denials,
                most=bounds.most,
            )
        except ChangeDenied as error:
            notes.append(f"the changes to the session's files were not kept: {error}")
            return _Kept(False, denied=error.paths[:MAX_WRITTEN])
        except ChangesTooLarge as error:
            notes.append(f"the changes to the session's files were not kept: {error}")
            return _Kept(False, excess=(error.wanted.paths, error.wanted.bytes))
        except QuotaExceeded as error:
            notes.append(f"the changes to the session's files were not kept: {error}")
            return _Kept(False)
        notes += [f"{path} is not a file, directory or link and was not kept" for path in report.dropped]
        return _Kept()

    def close(self) -> None:
        """Let go of the file system; the kernel frees it."""
        if self.fd >= 0:
            os.close(self.fd)
        if self.session is not None:
            self.session.close()


def session_in(files_home: Path, session_id: str, tenant: str) -> SessionWorkspace:
    """Return the files of a session, made if there were none."""
    from ringfence.workspaces.session import SessionWorkspace

    return SessionWorkspace.create(files_home, session_id, tenant=tenant)


def _may_stay(session: SessionWorkspace, upper: int, limits: Limits, keeping: Keeping) -> bool:
    """Whether the tool may write every path that would not be what it is, however it went about it."""
    if keeping.work is None:
        return True
    from ringfence.workspaces.commit import MOST_ENTRIES, survey, survey_upper
    from ringfence.workspaces.touching import is_within, touched

    steps = survey_upper(upper, limits.inodes)
    with session.using():
        present = survey(session.work_fd, max_entries=MOST_ENTRIES, layered=False)
    return is_within(touched(present, steps), keeping.work)


def _inodes(fd: int) -> int:
    usage = os.fstatvfs(fd)
    return usage.f_files - usage.f_ffree


def _is_empty(directory: int) -> bool:
    with os.scandir(directory) as entries:
        return next(entries, None) is None


class _Opened:
    """A directory of the run, open for the length of a `with` block."""

    def __init__(self, root: int, name: str) -> None:
        # the guest cannot change what is in the root of its file system, so this one step cannot be redirected
        try:
            self._fd = os.open(name, _DIRECTORY, dir_fd=root)
        except PermissionError:  # as an ordinary user we are its owner, as the guest was who closed it
            from ringfence.workspaces.tree import open_readable, permit_search

            permit_search(root)
            self._fd = open_readable(root, os.fsencode(name), _DIRECTORY)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _changed_at(upper: int, name: str) -> int:
    """Return when the kernel last saw the file change; unlike the modification time, no guest can set this."""
    from ringfence.workspaces.beneath import open_beneath
    from ringfence.workspaces.names import original

    fd = open_beneath(upper, b"/".join(map(original, name.split("/"))), os.O_PATH)
    try:
        return os.fstat(fd).st_ctime_ns
    finally:
        os.close(fd)
