"""The one file system of a run, held by the host through a descriptor of its root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ringfence.capability.limits import Limits
from ringfence.errors import QuotaExceeded
from ringfence.ports import Harvest
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.changes import Changes, commit, written
from ringfence.workspaces.collect import collect
from ringfence.workspaces.place import place
from ringfence.workspaces.session import SessionWorkspace

_MAX_WRITTEN = 10_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


@dataclass(slots=True)
class RunDirectory:
    """Inputs go in before the guest starts; everything comes out after its last process is dead."""

    fd: int
    owner: tuple[int, int] | None
    session: SessionWorkspace | None = None
    _placed: dict[str, int] = field(default_factory=dict, init=False)

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Write `files` into the work directory and `inputs` where the guest can only read."""
        if files:
            self._place("upper", files)
            with _opened(self.fd, "upper") as upper:
                self._placed = {name: _changed_at(upper, name) for name in written(upper, max_entries=_MAX_WRITTEN).files}
        if inputs:
            self._place("inputs", inputs)

    def _place(self, name: str, files: Mapping[str, bytes]) -> None:
        with _opened(self.fd, name) as directory:
            place(directory, files, owner=self.owner)

    def harvest(self, limits: Limits) -> Harvest:
        """Read artifacts and changes; with a session, keep the changes."""
        notes: list[str] = []
        with _opened(self.fd, "artifacts") as directory:
            found = collect(
                directory,
                max_bytes=limits.artifact_bytes,
                max_count=limits.artifact_count,
                max_depth=limits.artifact_depth,
            )
        notes += [f"artifact {skipped.path} was not collected: {skipped.reason}" for skipped in found.skipped]
        with _opened(self.fd, "upper") as upper:
            changes = written(upper, max_entries=_MAX_WRITTEN)
            files = tuple(name for name in changes.files if self._touched(upper, name))
            if self.session is not None and (changes.files or changes.deleted):
                notes += self._commit(self.session, upper, limits)
        if not changes.complete:
            notes.append(f"files_written lists the first {_MAX_WRITTEN} entries only")
        return Harvest(found.artifacts, files, tuple(notes), changed=_anything(changes))

    def _touched(self, upper: int, name: str) -> bool:
        before = self._placed.get(name)
        return before is None or _changed_at(upper, name) != before

    def _commit(self, session: SessionWorkspace, upper: int, limits: Limits) -> list[str]:
        try:
            with session.opened_work() as work:
                report = commit(upper, work, max_bytes=limits.disk_bytes, max_inodes=limits.inodes)
        except QuotaExceeded as error:
            return [f"the changes to the session's files were not kept: {error}"]
        return [f"{dropped.path} was not kept: {dropped.reason}" for dropped in report.dropped]

    def close(self) -> None:
        """Let go of the file system; the kernel frees it."""
        os.close(self.fd)


def _anything(changes: Changes) -> bool:
    return bool(changes.files or changes.deleted)


class _opened:
    """A directory of the run, open for the length of a `with` block."""

    def __init__(self, root: int, name: str) -> None:
        self._fd = open_beneath(root, name, _DIRECTORY)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _changed_at(upper: int, name: str) -> int:
    """Return when the kernel last saw the file change; unlike the modification time, no guest can set this."""
    fd = open_beneath(upper, name, os.O_PATH)
    try:
        return os.fstat(fd).st_ctime_ns
    finally:
        os.close(fd)
