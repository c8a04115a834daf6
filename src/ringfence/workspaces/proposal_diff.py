"""What a run would change, as people are shown it: the paths, and of text how it would read, within bounds."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from ringfence.dataclass import dataclass
from ringfence.errors import PathTraversalError
from ringfence.outcome import Pending
from ringfence.workspaces.beneath import open_parent
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.text_diff import MOST_FILE_BYTES, unified
from ringfence.workspaces.touching import Effect, Touched
from ringfence.workspaces.tree import open_readable

MOST_PATHS = 1000
MOST_DIFF_CHARACTERS = 256 * 1024
MOST_READ_BYTES = 16 * 1024 * 1024
"""Of both sides together: what is looked at to show a diff is bounded, whatever a run wrote."""


def shown(work_fd: int, upper_fd: int, changes: Mapping[bytes, Touched]) -> Pending:
    """Return the changes that are some: a file that was only opened for writing is not one."""
    lists: dict[Effect, list[str]] = {effect: [] for effect in Effect}
    reader, parts, characters, complete = _Reader(), [], 0, True
    for path in sorted(changes):
        effect, name = changes[path].effect, harmless_path(path)
        text = ""
        if changes[path].is_directory:
            name += "/"
        else:
            before = None if effect is Effect.ADDED else reader.read(work_fd, path)
            after = None if effect is Effect.DELETED else reader.read(upper_fd, path)
            if before is not None and before == after and before.content is not None:
                continue
            text = _told(name, before, after)
        if sum(map(len, lists.values())) < MOST_PATHS:
            lists[effect].append(name)
        else:
            complete = False
        if characters + len(text) <= MOST_DIFF_CHARACTERS:
            parts.append(text)
            characters += len(text)
        else:
            complete = False
    added, modified, deleted = (tuple(lists[effect]) for effect in Effect)
    return Pending("", added, modified, deleted, "".join(parts), complete)


@dataclass(frozen=True, slots=True)
class _Side:
    """One state of a path; `content` is None where it is no file, or too large to be shown."""

    mode: int
    content: bytes | None = None
    target: bytes = b""


class _Reader:
    def __init__(self) -> None:
        self._left = MOST_READ_BYTES

    def read(self, root_fd: int, path: bytes) -> _Side | None:
        """Read one state of `path`; None where there is nothing that could be looked at."""
        try:
            parent, name = open_parent(root_fd, path)
        except (OSError, PathTraversalError):
            return None
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return _Side(status.st_mode, None, os.readlink(name, dir_fd=parent))
            if not stat.S_ISREG(status.st_mode) or status.st_size > min(MOST_FILE_BYTES, self._left):
                return _Side(status.st_mode & 0o170777)
            fd = open_readable(parent, name)
        except (OSError, PathTraversalError):
            return None
        finally:
            os.close(parent)
        with open(fd, "rb") as file:
            content = file.read(MOST_FILE_BYTES + 1)
        self._left -= len(content)
        return _Side(status.st_mode & 0o170777, content)


def _told(name: str, before: _Side | None, after: _Side | None) -> str:
    lines = ""
    if before is not None and after is not None and before.mode != after.mode:
        lines += f"--- a/{name}\n+++ b/{name}\nold mode {before.mode:o}\nnew mode {after.mode:o}\n"
    sides = [side for side in (before, after) if side is not None]
    if any(side.content is None for side in sides):
        what = "link" if any(side.target for side in sides) else "file"
        return f"{lines}{'Added' if before is None else 'Deleted' if after is None else 'Changed'} {what} {name}\n"
    if before is not None and after is not None and before.content == after.content:
        return lines
    text = unified(name, None if before is None else before.content, None if after is None else after.content)
    return f"Binary file {name}\n" if text is None else text
