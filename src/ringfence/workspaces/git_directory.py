"""What of a `.git` directory goes along when a repository is copied for a guest: its history, and nobody's secrets.

Git keeps more there than history. Hooks and configuration are commands that the next `git` runs; remotes and headers
in the configuration hold passwords; linked work trees and borrowed objects point to other places of the host.
"""

from __future__ import annotations

import posixpath
import re
from enum import Enum
from typing import Final

MOST_CONFIG_BYTES: Final = 1024 * 1024
MOST_LINK_BYTES: Final = 4096
ALTERNATES: Final = b"objects/info/alternates"
_LEFT_OUT: Final = frozenset(
    {
        *(b"hooks", b"worktrees", b"logs", b"FETCH_HEAD", b"config.worktree", b"credentials", b"credential-cache"),
        *(b"gitdir", b"commondir", b"fsmonitor--daemon", b"fsmonitor--daemon.ipc", b"git-crypt"),
    }
)
_SECTION: Final = re.compile(rb"\s*\[\s*([A-Za-z0-9.-]+)\s*(\"[^\n]*\")?\s*\]\s*\Z")
_ENTRY: Final = re.compile(rb"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*([A-Za-z0-9./_-]+)\s*\Z")
# without them git would read the objects wrongly, or not at all
_EXTENSIONS: Final = frozenset({b"objectformat", b"compatobjectformat", b"refstorage"})


class Place(Enum):
    """Where in a repository a directory is."""

    PLAIN = "among the files"
    GIT = "a git directory"
    MODULES = "where a git directory keeps those of its submodules"
    INSIDE = "within a git directory"


def place_of(name: bytes, parent: Place, entries: frozenset[bytes]) -> Place:
    """Return where a directory is, by its name, where it lies and what is in it."""
    match parent:
        case Place.PLAIN:
            return Place.GIT if name == b".git" else Place.PLAIN
        case Place.GIT:
            return Place.MODULES if name == b"modules" else Place.INSIDE
        case Place.MODULES:
            return Place.GIT if is_bare(entries) else Place.MODULES
        case Place.INSIDE:
            return Place.INSIDE


def is_bare(entries: frozenset[bytes]) -> bool:
    """Whether a directory with these entries is what `.git` usually is."""
    return {b"HEAD", b"objects", b"refs"} <= entries


def goes_along(name: bytes, place: Place) -> bool:
    """Whether an entry of a directory is copied."""
    return place is not Place.GIT or (name not in _LEFT_OUT and not name.endswith(b".lock"))


def configuration(text: bytes) -> bytes:
    """Return a configuration in which nothing is left but how the objects are to be read, and where the files are."""
    core: dict[bytes, bytes] = {b"repositoryformatversion": b"0"}
    extensions: dict[bytes, bytes] = {}
    section = b""
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section = b"" if head[2] else head[1].lower()
        elif entry := _ENTRY.match(line):
            key, value = entry[1].lower(), entry[2]
            if section == b"core" and _is_kept(key, value):
                core[key] = value
            elif section == b"extensions" and key in _EXTENSIONS:
                extensions[key] = value
    lines = [b"[core]", *(b"\t%s = %s" % pair for pair in sorted(core.items()))]
    lines += [b"\tfilemode = true", b"\tbare = false", b"\tlogallrefupdates = true"]
    if extensions:
        lines += [b"[extensions]", *(b"\t%s = %s" % pair for pair in sorted(extensions.items()))]
    return b"\n".join([*lines, b""])


def _is_kept(key: bytes, value: bytes) -> bool:
    if key == b"repositoryformatversion":
        return value in (b"0", b"1")
    return key == b"worktree" and not value.startswith(b"/")


def leads_inside(link: bytes, directory: bytes) -> bool:
    """Whether a file `.git` in `directory` of the tree names a git directory of the same tree."""
    word, _, target = link.partition(b":")
    target = target.strip()
    if word.strip() != b"gitdir" or not target or target.startswith(b"/") or b"\n" in target or b"\0" in target:
        return False
    found = posixpath.normpath(posixpath.join(b"/root", directory, target))
    return found.startswith(b"/root/")
