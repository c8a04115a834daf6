"""Everything that lies in an upper or in a work directory, as a list that holds no descriptor and follows no link."""

from __future__ import annotations

import stat
from enum import Enum, auto

from ringfence.dataclass import dataclass
from ringfence.errors import QuotaExceeded
from ringfence.workspaces.changes import MAX_DEPTH, is_opaque
from ringfence.workspaces.tree import Walk

MOST_ENTRIES = 4_194_304  # four times the highest inode limit: a bound, not a quota


class Kind(Enum):
    """What one entry of an upper asks for."""

    FILE = auto()
    LINK = auto()
    DIRECTORY = auto()
    OPAQUE = auto()
    WHITEOUT = auto()
    SPECIAL = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of an upper (or of a work directory), without any descriptor."""

    path: bytes
    kind: Kind
    mode: int
    size: int


def survey(root_fd: int, *, max_entries: int, layered: bool) -> list[Step]:
    """List everything below `root_fd`; `layered` when it is an upper, whose marks mean deletion.

    Raises:
        QuotaExceeded: There are more entries, or deeper ones, than a session may hold.
    """
    walk = Walk(root_fd, max_entries=max_entries, max_depth=MAX_DEPTH)
    steps = []
    for entry in walk:
        if entry.is_file:
            kind = Kind.FILE
        elif entry.is_link:
            kind = Kind.LINK
        elif entry.is_directory:
            kind = Kind.OPAQUE if layered and is_opaque(entry) else Kind.DIRECTORY
        else:
            kind = Kind.WHITEOUT if layered and entry.is_whiteout else Kind.SPECIAL
        size = entry.status.st_size if kind in (Kind.FILE, Kind.LINK) else 0
        steps.append(Step(entry.path, kind, stat.S_IMODE(entry.status.st_mode), size))
    if not walk.complete:
        raise QuotaExceeded(
            "too many files, or directories too deep, for a session", reason="workspace_disk", max_inodes=max_entries
        )
    return steps
