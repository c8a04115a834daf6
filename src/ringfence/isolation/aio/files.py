"""Files of an AIO service: its paths are its own, and what it says of them is checked by whoever uses it."""

from __future__ import annotations

import base64

from ringfence.dataclass import dataclass
from ringfence.isolation.aio.answers import maybe, member, read_data, texts
from ringfence.isolation.aio.door import LONGEST_ANSWER, Door


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One entry of a directory, as the service describes it."""

    name: str
    path: str
    is_directory: bool
    size: int | None = None
    modified_time: str | None = None
    permissions: str | None = None


class Files:
    """`/v1/file`."""

    def __init__(self, door: Door) -> None:
        """Speak through `door`."""
        self._door = door

    async def read(self, path: str, *, start_line: int | None = None, end_line: int | None = None) -> str:
        """Return a file's text, or lines of it: from `start_line`, counted from 0, up to before `end_line`."""
        form = {"file": path, "start_line": start_line, "end_line": end_line}
        return member(read_data(await self._door.post("file/read", form)), "content", str)

    async def write(self, path: str, content: bytes | str, *, append: bool = False) -> None:
        """Write a file, bytes as they are."""
        if isinstance(content, str):
            form = {"file": path, "content": content, "encoding": "utf-8", "append": append}
        else:
            encoded = base64.b64encode(content).decode()
            form = {"file": path, "content": encoded, "encoding": "base64", "append": append}
        await self._door.post("file/write", form)

    async def list(
        self, path: str, *, recursive: bool = False, show_hidden: bool = True, max_depth: int | None = None
    ) -> tuple[RemoteFile, ...]:
        """Return what is in a directory."""
        form = {
            "path": path,
            "recursive": recursive,
            "show_hidden": show_hidden,
            "max_depth": max_depth,
            "include_size": True,
            "include_permissions": True,
        }
        data = read_data(await self._door.post("file/list", form))
        return tuple(_entry(each) for each in maybe(data, "files", list) or [])

    async def find(self, path: str, glob: str) -> tuple[str, ...]:
        """Return the files below `path` whose names fit a pattern."""
        return texts(read_data(await self._door.post("file/find", {"path": path, "glob": glob})), "files")

    async def search(self, path: str, regex: str) -> tuple[str, ...]:
        """Return what in a file fits a regular expression."""
        return texts(read_data(await self._door.post("file/search", {"file": path, "regex": regex})), "matches")

    async def replace(self, path: str, old: str, new: str) -> int:
        """Replace a text wherever it stands in a file, and return how often it did."""
        form = {"file": path, "old_str": old, "new_str": new}
        return maybe(read_data(await self._door.post("file/replace", form)), "replaced_count", int) or 0

    async def download(self, path: str, *, longest: int = LONGEST_ANSWER) -> bytes:
        """Return a file's bytes.

        Raises:
            Unavailable: It has more than `longest`.
        """
        return await self._door.content("file/download", longest=longest, path=path)


def _entry(form: object) -> RemoteFile:
    described = form if isinstance(form, dict) else {}
    return RemoteFile(
        member(described, "name", str),
        member(described, "path", str),
        member(described, "is_directory", bool),
        maybe(described, "size", int),
        maybe(described, "modified_time", str),
        maybe(described, "permissions", str),
    )
