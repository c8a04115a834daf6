"""What a run takes along to an AIO service and what comes back: one tar file each way.

The session's files are the host's: every run is sent them anew, and what it changed is told from what comes back. So
proposals, quotas and what nobody may change mean here what they mean natively.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import shlex
import stat
import tarfile
from collections.abc import Iterator, Mapping
from typing import Final

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import QuotaExceeded
from ringfence.isolation.aio import tape
from ringfence.isolation.protocol import Kind, ProtocolError
from ringfence.isolation.stream import wire
from ringfence.workspaces.changes import MAX_DEPTH
from ringfence.workspaces.place import check_names
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.tree import Entry, Walk, open_readable

PLACED_AT: Final = 946_684_800
"""When every file that is sent was last changed, so that one that was changed since can be told."""
_MOST_ENTRIES: Final = 100_000
_MOST_SIZE: Final = 1 << 62
_AREAS: Final = frozenset({b"work", b"artifacts"})


@dataclass(frozen=True, slots=True)
class Sent:
    """One entry of the work directory as it was sent."""

    kind: str
    mode: int
    digest: bytes
    size: int = 0
    is_placed: bool = False
    """Whether the caller brought it for this run, so that the session does not have it."""


@dataclass(slots=True)
class Luggage:
    """The tar file that goes there."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    _buffer: io.BytesIO = field(default_factory=io.BytesIO)
    _tar: tarfile.TarFile | None = None

    def pack(
        self,
        session: SessionWorkspace | None,
        files: Mapping[str, bytes],
        inputs: Mapping[str, bytes],
        job: Mapping[str, bytes],
        most_bytes: int,
    ) -> bytes:
        """Return the whole of it.

        Raises:
            InvalidRequest: A name is unfit, given twice, or both a file and a directory.
            QuotaExceeded: It is more than the workspace of a run may hold.
        """
        with tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.GNU_FORMAT) as self._tar:
            if session is not None:
                with session.using():
                    self._pack_session(session.work_fd, most_bytes)
            for name, content in zip(check_names(files), files.values(), strict=True):
                self._add_placed(os.fsencode(str(name)), content)
            for area, given in (("inputs", inputs), ("job", job)):
                for name, content in zip(check_names(given, under=area), given.values(), strict=True):
                    self._add(f"{area}/{name}", tarfile.REGTYPE, 0o444 if area == "inputs" else 0o600, content)
        packed = self._buffer.getvalue()
        if len(packed) > most_bytes + _MOST_ENTRIES * tape.BLOCK:
            raise QuotaExceeded("the files do not fit into the workspace", reason="disk")
        return packed

    def _pack_session(self, work_fd: int, most_bytes: int) -> None:
        walk = Walk(work_fd, max_entries=_MOST_ENTRIES, max_depth=MAX_DEPTH)
        total = 0
        for entry in walk:
            total += entry.status.st_size if entry.is_file else 0
            if total > most_bytes:
                break
            self._pack_entry(entry)
        else:
            if walk.complete:
                return
        raise QuotaExceeded("the session has more files than can be sent to an AIO service", reason="workspace_disk")

    def _pack_entry(self, entry: Entry) -> None:
        name = f"work/{os.fsdecode(entry.path)}"
        mode = stat.S_IMODE(entry.status.st_mode) & 0o777
        if entry.is_directory:
            self._add(name, tarfile.DIRTYPE, mode | 0o700)
            self.sent[entry.path] = Sent(tape.DIRECTORY, mode, b"")
        elif entry.is_link:
            target = os.readlink(entry.name, dir_fd=entry.parent_fd)
            self._add(name, tarfile.SYMTYPE, 0o777, target=os.fsdecode(target))
            self.sent[entry.path] = Sent(tape.LINK, 0o777, target)
        elif entry.is_file:
            fd = open_readable(entry.parent_fd, entry.name)
            with open(fd, "rb") as file:
                content = file.read(entry.status.st_size)
            self._add(name, tarfile.REGTYPE, mode, content)
            self.sent[entry.path] = Sent(tape.FILE, mode, hashlib.sha256(content).digest(), len(content))

    def _add_placed(self, path: bytes, content: bytes) -> None:
        parents = path.split(b"/")[:-1]
        for deep in range(1, len(parents) + 1):
            parent = b"/".join(parents[:deep])
            if parent not in self.sent:
                self._add(f"work/{os.fsdecode(parent)}", tarfile.DIRTYPE, 0o755)
                self.sent[parent] = Sent(tape.DIRECTORY, 0o755, b"", is_placed=True)
        self._add(f"work/{os.fsdecode(path)}", tarfile.REGTYPE, 0o644, content)
        self.sent[path] = Sent(tape.FILE, 0o644, hashlib.sha256(content).digest(), len(content), is_placed=True)

    def _add(self, name: str, kind: bytes, mode: int, content: bytes = b"", target: str = "") -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.size, info.linkname, info.mtime = kind, mode, len(content), target, PLACED_AT
        if self._tar is not None:
            self._tar.addfile(info, io.BytesIO(content))


def packing_back(root: str, limits: Limits, *, with_session: bool) -> str:
    """Return the command line that puts what a run left into `job/back.tar`, and what is only to be named into a list.

    Without a session the contents of the work directory are nobody's, and an artifact beyond the limit would be left
    out anyway: of these only names and sizes travel. What its owner may not read, tar could not; it becomes readable.
    """
    artifact_bytes, entries = limits.artifact_bytes, _most_artifacts(limits) + 2  # their directory, and one too many
    listed = f"-printf {shlex.quote(tape.LISTED)}"
    work = "work" if with_session else ""
    names = f"find artifacts -type f -size +{artifact_bytes}c {listed}"
    if not with_session:
        names = f"find work -mindepth 1 {listed}; {names}"
    return (
        f"cd {shlex.quote(root)} && chmod -R u+rX work artifacts && {{ {names}; }} >job/back.list && "
        f"{{ find artifacts '(' ! -type f -o -size -{artifact_bytes + 1}c ')' -print0 | head -zn {entries}; "
        f"{f'find {work} -print0; ' if work else ''}}} | "
        "tar --format=gnu --hard-dereference --numeric-owner --no-recursion --null -T - -cf job/back.tar"
    )


def most_back(limits: Limits, *, with_session: bool) -> int:
    """Return how many bytes the tar file may have that comes back."""
    files = limits.artifact_bytes + (limits.disk_bytes if with_session else 0)
    entries = _most_artifacts(limits) + (2 * limits.inodes if with_session else 0)
    return files + 2 * tape.BLOCK * min(entries, _MOST_ENTRIES)


def _most_artifacts(limits: Limits) -> int:
    """Return of how many artifacts and directories of them anything is wanted, as of a container."""
    return 2 * limits.artifact_count + 64


class Unpacking:
    """Tells what came back in the words of a container's harvest, so that the same code judges it.

    Speaks as `stream.line.Talk` does: it is asked for a harvest, and then heard to its end.
    """

    def __init__(self, taped: bytes, listed: bytes, sent: Mapping[bytes, Sent], *, with_session: bool) -> None:
        """Read nothing yet."""
        self._sent = sent
        self._with_session = with_session
        self._bounds: dict[str, dict[str, int]] = {}
        self._messages = self._tell(memoryview(taped), listed)

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Be asked for the harvest: the payload has its bounds."""
        if kind is Kind.HARVEST:
            self._bounds = json.loads(payload)

    def hear(self, deadline: float) -> tuple[Kind, bytes]:  # noqa: ARG002  it is all there: nobody waits
        """Return the next message.

        Raises:
            ProtocolError: What came back is no tar file of ours.
        """
        try:
            return next(self._messages)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def _tell(self, taped: memoryview, listed: bytes) -> Iterator[tuple[Kind, bytes]]:
        seen: set[bytes] = set()
        whole = True
        entries: dict[bytes, tape.Taped] = {}
        wanted = self._bounds["artifacts"]
        left, count, room = wanted["bytes"], wanted["count"], wanted["entries"]
        for entry in itertools.chain(tape.read_tape(taped), tape.read_list(listed)):
            area, _, path = entry.path.partition(b"/")
            if area not in _AREAS or entry.path in seen:
                raise ValueError("an entry of neither area, or one that came before")
            seen.add(entry.path)
            if not path:
                continue
            if area == b"work":
                entries[path] = entry
                continue
            if room == 0 or path.count(b"/") >= wanted["depth"]:
                whole = False
                continue
            room -= 1
            fits = entry.content is not None and entry.size <= left and count > 0
            if fits and entry.kind == tape.FILE:
                left, count = left - entry.size, count - 1
            yield from _message(wire.ARTIFACTS, path, entry, contents=fits)
        most = self._bounds["work"]["entries"]
        yield from self._work(dict(itertools.islice(entries.items(), most)))
        yield Kind.HARVEST, b"1" if whole and len(entries) <= most else b"0"

    def _work(self, entries: Mapping[bytes, tape.Taped]) -> Iterator[tuple[Kind, bytes]]:
        """Tell what is new or changed in the work directory, and what of the session is gone."""
        told: set[bytes] = set()
        for path, entry in entries.items():
            before = self._sent.get(path)
            same = before is not None and _same(before, entry)
            if path in told or (before is not None and same and not before.is_placed):
                continue
            yield from self._parents(path, entries, told)
            told.add(path)
            flags = wire.UNTOUCHED if same else 0
            yield from _message(wire.WORK, path, entry, contents=self._with_session, flags=flags)
        for path, sent in sorted(self._sent.items()) if self._with_session else ():
            parent = path.rpartition(b"/")[0]
            # of a directory that is gone, its own name stands for all below it
            its_parent_is_there = not parent or (parent in entries and entries[parent].kind == tape.DIRECTORY)
            if path not in entries and not sent.is_placed and its_parent_is_there:
                yield from self._parents(path, entries, told)
                yield Kind.GONE, path

    def _parents(
        self, path: bytes, entries: Mapping[bytes, tape.Taped], told: set[bytes]
    ) -> Iterator[tuple[Kind, bytes]]:
        """Tell of the directories that an entry lies in, each once, before it."""
        parts = path.split(b"/")[:-1]
        for deep in range(1, len(parts) + 1):
            parent = b"/".join(parts[:deep])
            if parent not in told:
                if parent not in entries or entries[parent].kind != tape.DIRECTORY:
                    raise ValueError("an entry whose directory has not come")
                told.add(parent)
                yield from _message(wire.WORK, parent, entries[parent], contents=False)


def _same(before: Sent, entry: tape.Taped) -> bool:
    if before.kind != entry.kind:
        return False
    match entry.kind:
        case tape.DIRECTORY:
            return True
        case tape.LINK:
            return before.digest == entry.target
        case _ if entry.content is None:
            return (before.mode, before.size, PLACED_AT) == (entry.mode, entry.size, entry.mtime)
        case _:
            return before.mode == entry.mode and before.digest == hashlib.sha256(entry.content).digest()


_WIRE_KINDS: Final = {
    tape.FILE: wire.FILE, tape.DIRECTORY: wire.DIRECTORY, tape.LINK: wire.LINK, tape.SPECIAL: wire.FIFO
}  # fmt: skip


def _message(
    area: int, path: bytes, entry: tape.Taped, *, contents: bool, flags: int = 0
) -> Iterator[tuple[Kind, bytes]]:
    if not path or len(path) > wire.MOST_NAME or len(entry.target) > wire.MOST_NAME:
        raise ValueError("a name that no file has")
    content = entry.content if contents and entry.kind == tape.FILE else None
    flags |= 0 if content is None else wire.HAS_CONTENT
    about = (area, _WIRE_KINDS[entry.kind], flags, entry.mode, entry.mtime * 1_000_000_000)
    size = min(entry.size, _MOST_SIZE) if entry.kind == tape.FILE else 0
    yield Kind.ENTRY, wire.pack(wire.Entry(*about, size, path, entry.target))
    for at in range(0, size if content is not None else 0, wire.PIECE_BYTES):
        yield Kind.PIECE, bytes(content[at : at + wire.PIECE_BYTES]) if content is not None else b""
