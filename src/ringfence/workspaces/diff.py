"""What became of a session's files since a snapshot, or since there were none: added, modified, deleted.

Comparing is pure; reading holds the session only as long as it takes to find what differs and to read the small text
files among it. The diff itself is made when everybody else may go on.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

from ringfence.dataclass import dataclass, field
from ringfence.errors import CapabilityBlocked
from ringfence.workspaces import snapshot_store as stored
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.beneath import open_parent
from ringfence.workspaces.changes import MAX_DEPTH
from ringfence.workspaces.diff_text import unified
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.snapshot_index import MOST_ENTRIES, Index, Node, digest_if_same, key_of
from ringfence.workspaces.snapshot_pack import PIECE_BYTES, read_content
from ringfence.workspaces.snapshot_taking import open_content
from ringfence.workspaces.tree import Entry, Walk, open_readable

ADDED, MODIFIED, DELETED = "added", "modified", "deleted"


@dataclass(frozen=True, slots=True)
class DiffCaps:
    """What one diff lists and shows; beyond it names are counted, and texts left out with the reason."""

    names: int = 10_000
    texts: int = 200
    file_bytes: int = 256 * 1024
    total_bytes: int = 8 * 1024 * 1024
    patch_bytes: int = 1024 * 1024


_CAPS: Final = DiffCaps()


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs; `text` says whether the patch shows it, or why not."""

    path: str
    change: str
    kind: str
    size_before: int | None
    size: int | None
    text: str = ""

    def to_dict(self) -> dict[str, str | int | None]:
        """Return it as plain JSON values."""
        form: dict[str, str | int | None] = {"path": self.path, "change": self.change, "kind": self.kind}
        if self.size_before is not None:
            form["size_before"] = self.size_before
        if self.size is not None:
            form["size"] = self.size
        if self.text:
            form["text"] = self.text
        return form


@dataclass(frozen=True, slots=True)
class Diff:
    """All of it: how many there are of each, the first of them by name, and a patch of the texts."""

    added: int
    modified: int
    deleted: int
    changes: tuple[Change, ...]
    complete: bool
    patch: str = field(repr=False)


class Pair(NamedTuple):
    """What a path was and is; one of them may be nothing."""

    path: bytes
    before: Node | None
    after: Node | None

    @property
    def change(self) -> str:
        """What happened to it."""
        if self.before is None:
            return ADDED
        return DELETED if self.after is None else MODIFIED


class _Texts(NamedTuple):
    before: bytes
    after: bytes


def differing(before: dict[bytes, Node], after: dict[bytes, Node]) -> list[Pair]:
    """Return what differs, by path: content, kind, target or permissions; a time alone is no difference."""
    pairs = (Pair(path, before.get(path), after.get(path)) for path in sorted(before.keys() | after.keys()))
    return [pair for pair in pairs if pair.before is None or pair.after is None or not _same(pair.before, pair.after)]


def _same(one: Node, other: Node) -> bool:
    if stat.S_IFMT(one.mode) != stat.S_IFMT(other.mode):
        return False
    if one.is_directory:
        return True
    if stat.S_ISLNK(one.mode):
        return one.target == other.target
    return one.digest == other.digest and one.mode & 0o777 == other.mode & 0o777


def diff(
    session: SessionWorkspace,
    since: str | None,
    *,
    caps: DiffCaps = _CAPS,
    look: Callable[[], None] = lambda: None,
    hidden: Callable[[str], bool] = lambda _: False,
) -> Diff:
    """Compare the work directory with a snapshot, or with nothing.

    `hidden` says of a path in the work directory that its content is not to be shown.

    Raises:
        InvalidRequest: There is no such snapshot.
        Unavailable: It is not what was written.
        CapabilityBlocked: The tree is more than a snapshot holds.
    """
    with session.holding() as owner:
        if since is None:
            with acting_as(owner):
                after = present(session.work_fd, None, look)
                pairs = differing({}, after)
                texts = _Reader(session.work_fd, caps, hidden, None).read(pairs)
        else:
            with stored.opened(session) as store, stored.Contents(store) as contents:
                index = stored.load(store, since)
                before = {node.path: node for node in index.nodes()}
                with acting_as(owner):
                    after = present(session.work_fd, index, look)
                    pairs = differing(before, after)
                    texts = _Reader(session.work_fd, caps, hidden, contents).read(pairs)
    return _told(pairs, texts, caps, look)


def present(work_fd: int, index: Index | None, look: Callable[[], None]) -> dict[bytes, Node]:
    """Return what is in a work directory, with the digests that it takes to tell what differs from `index`.

    Raises:
        CapabilityBlocked: There is more than a snapshot holds.
    """
    known = {} if index is None else index.known()
    began_ns = 0 if index is None else index.began_ns
    walk = Walk(work_fd, max_entries=MOST_ENTRIES, max_depth=MAX_DEPTH)
    found: dict[bytes, Node] = {}
    for number, entry in enumerate(walk):
        if number % 512 == 0:
            look()
        status, digest, target = entry.status, b"", b""
        if entry.is_file:
            head = known.get(entry.path)
            same = digest_if_same(head, key_of(status), began_ns)
            # of another size it is another file, and of a new one nobody asks
            digest = same or (_digest_of(entry) if head is not None and _size_in(head) == status.st_size else b"")
        elif entry.is_link:
            target = os.readlink(entry.name, dir_fd=entry.parent_fd)
        elif not entry.is_directory:
            continue
        found[entry.path] = Node(entry.path, status.st_mode, status.st_size, status.st_mtime_ns, digest, target)
    if not walk.complete:
        raise CapabilityBlocked(
            f"a diff compares at most {MOST_ENTRIES} entries, {MAX_DEPTH} levels deep",
            reason="too_many_entries",
            limit=MOST_ENTRIES,
        )
    return found


def _size_in(head: bytes) -> int:
    return int.from_bytes(head[20:28], "big")


def _digest_of(entry: Entry) -> bytes:
    fd = open_content(entry)
    try:
        digest = hashlib.sha256()
        while piece := os.read(fd, PIECE_BYTES):
            digest.update(piece)
        return digest.digest()
    finally:
        os.close(fd)


class _Reader:
    """Reads both versions of what can be shown as text, within the caps; says of everything else why not."""

    def __init__(
        self, work_fd: int, caps: DiffCaps, hidden: Callable[[str], bool], contents: stored.Contents | None
    ) -> None:
        self._work_fd = work_fd
        self._caps = caps
        self._hidden = hidden
        self._contents = contents
        self._left = caps.total_bytes

    def read(self, pairs: list[Pair]) -> dict[bytes, _Texts | str]:
        found: dict[bytes, _Texts | str] = {}
        shown = 0
        for pair in pairs[: self._caps.names]:
            if not any(node is not None and node.is_file for node in (pair.before, pair.after)):
                continue
            if shown >= self._caps.texts:
                found[pair.path] = "too_many"
                continue
            found[pair.path] = self._read(pair)
            shown += isinstance(found[pair.path], _Texts)
        return found

    def _read(self, pair: Pair) -> _Texts | str:
        size = sum(node.size for node in (pair.before, pair.after) if node is not None and node.is_file)
        if size > self._caps.file_bytes or size > self._left:
            return "too_large"
        if self._hidden("work/" + os.fsdecode(pair.path)):
            return "denied"
        before, after = self._before(pair.before), self._after(pair)
        if before is None or after is None:
            return "damaged"
        if not (_is_text(before) and _is_text(after)):
            return "binary"
        self._left -= size
        return _Texts(before, after)

    def _before(self, node: Node | None) -> bytes | None:
        if node is None or not node.is_file:
            return b""
        found = None if self._contents is None else self._contents.find(node.digest)
        if found is None:
            return None
        content = b"".join(read_content(*found))
        return content if hashlib.sha256(content).digest() == node.digest else None

    def _after(self, pair: Pair) -> bytes | None:
        if pair.after is None or not pair.after.is_file:
            return b""
        parent, name = open_parent(self._work_fd, pair.path)
        try:
            fd = open_readable(parent, name)
        finally:
            os.close(parent)
        try:
            return os.read(fd, pair.after.size)
        finally:
            os.close(fd)


def _is_text(content: bytes) -> bool:
    if b"\0" in content:
        return False
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _told(pairs: list[Pair], texts: dict[bytes, _Texts | str], caps: DiffCaps, look: Callable[[], None]) -> Diff:
    patch: list[str] = []
    changes: list[Change] = []
    room = caps.patch_bytes
    for pair in pairs[: caps.names]:
        look()
        text = texts.get(pair.path, "")
        if isinstance(text, _Texts):
            piece = _patch(pair, text)
            size = len(piece.encode())
            text = "shown" if size <= room else "too_large"
            if size <= room:
                patch.append(piece)
                room -= size
        changes.append(_change(pair, text))
    count = {kind: sum(pair.change == kind for pair in pairs) for kind in (ADDED, MODIFIED, DELETED)}
    return Diff(count[ADDED], count[MODIFIED], count[DELETED], tuple(changes), len(pairs) <= caps.names, "".join(patch))


def _patch(pair: Pair, texts: _Texts) -> str:
    name = harmless_path(pair.path)
    before = "/dev/null" if pair.before is None else f"a/{name}"
    after = "/dev/null" if pair.after is None else f"b/{name}"
    return unified(texts.before.decode(), texts.after.decode(), before=before, after=after)


def _change(pair: Pair, text: str) -> Change:
    node = pair.after or pair.before
    if node is None:
        raise ValueError("a pair of nothing")
    kind = "file" if node.is_file else "directory" if node.is_directory else "link"
    before = pair.before.size if pair.before is not None and pair.before.is_file else None
    after = pair.after.size if pair.after is not None and pair.after.is_file else None
    return Change(harmless_path(pair.path), pair.change, kind, before, after, text)
