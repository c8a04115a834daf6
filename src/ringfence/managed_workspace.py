"""One session's files in the hands of a program: each method is one operation, judged and written down like any other.

The same object serves a manager in this process and one that speaks to a service: all it needs is `perform`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ringfence.capability.limits import MIB
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation import brokered, workspace
from ringfence.outcome import BrokerOutcome, Outcome

Perform = Callable[[brokered.Brokered], Awaitable[Outcome]]
_MOST_BYTES = 256 * MIB
_MOST_PAGES = 1000
Listing = list[dict[str, Any]]


class ManagedWorkspace:
    """Paths are relative to the work directory, or written as `/workspace/...`; nothing outside can be named."""

    def __init__(self, perform: Perform) -> None:
        """`perform` carries out one operation on the session's files."""
        self._perform = perform

    async def read(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            InvalidRequest: There is no such file.
            CapabilityBlocked: The policy keeps contents from callers, or the file changed while it was read.
        """
        content = bytearray()
        while True:
            found = await self._broker(brokered.FsRead(_in_work(path), len(content)))
            if found.content is None:
                raise CapabilityBlocked("the policy does not hand out contents", reason="blocked")
            content += found.content
            if not found.out["truncated"]:
                return bytes(content)
            if len(content) > _MOST_BYTES:
                raise CapabilityBlocked(f"{path[:100]!a} is larger than {_MOST_BYTES} bytes", reason="too_large")
            if not found.content:
                raise CapabilityBlocked(f"{path[:100]!a} changed while it was read", reason="changed")

    async def write(self, path: str, content: bytes | str, *, overwrite: bool = True) -> dict[str, Any]:
        """Write a whole file; missing directories are made."""
        data = content.encode() if isinstance(content, str) else content
        return dict((await self._broker(brokered.FsWrite(_in_work(path), data, overwrite))).out)

    async def list(self, path: str = "") -> Listing:
        """Return what is in a directory, each entry with its name, path, kind, size and time."""
        entries: Listing = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = (await self._broker(brokered.FsList(_in_work(path), cursor))).out
            entries += page["entries"]
            cursor = page["cursor"]
            if cursor is None:
                return entries
        raise CapabilityBlocked("the directory has more entries than one list holds", reason="too_many_entries")

    async def stat(self, path: str) -> dict[str, Any]:
        """Say what a path is."""
        return dict((await self._broker(brokered.FsStat(_in_work(path)))).out)

    async def mkdir(self, path: str) -> dict[str, Any]:
        """Make a directory and those above it."""
        return dict((await self._broker(brokered.FsMkdir(_in_work(path)))).out)

    async def delete(self, path: str) -> dict[str, Any]:
        """Delete a file or an empty directory."""
        return dict((await self._broker(brokered.FsDelete(_in_work(path)))).out)

    async def snapshot(self, label: str = "") -> dict[str, Any]:
        """Keep the files as they are now; return its id and sizes."""
        return dict((await self._broker(workspace.WsSnapshot(label))).out)

    async def snapshots(self) -> Listing:
        """Return the snapshots, oldest first."""
        return [dict(info) for info in (await self._broker(workspace.WsSnapshots())).out["snapshots"]]

    async def restore(self, snapshot_id: str, *, snapshot_before: bool = False) -> dict[str, Any]:
        """Put the files back as they were, in one step."""
        return dict((await self._broker(workspace.WsRestore(snapshot_id, snapshot_before))).out)

    async def delete_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """Forget a snapshot."""
        return dict((await self._broker(workspace.WsSnapshotDelete(snapshot_id))).out)

    async def reset(self, *, snapshot_before: bool = False) -> dict[str, Any]:
        """Start over with no files, in one step."""
        return dict((await self._broker(workspace.WsReset(snapshot_before))).out)

    async def checkout(self, repository: str) -> dict[str, Any]:
        """Fill the work directory, which must be empty, with a copy of a repository that the operator registered."""
        return dict((await self._broker(workspace.WsCheckout(repository))).out)

    async def diff(self, since: str | None = None) -> dict[str, Any]:
        """Say what changed since a snapshot, or since there was nothing; `patch` is a unified diff of the texts."""
        found = await self._broker(workspace.WsDiff(since))
        patch = None if found.content is None else found.content.decode()
        return {**found.out, "patch": patch}

    async def _broker(self, operation: brokered.Brokered) -> BrokerOutcome:
        outcome = await self._perform(operation)
        if not isinstance(outcome, BrokerOutcome):
            raise TypeError(f"{operation.kind} brought no outcome of a broker")
        return outcome


def _in_work(path: str) -> str:
    if not isinstance(path, str):
        raise InvalidRequest(f"{path!r} is not a path", reason="invalid_path")
    if path.startswith("/"):
        return path
    return f"work/{path}" if path else "work"
