"""The file broker: an agent's reads and writes in its workspace, carried out by the host without running any code."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ringfence.capability.limits import MIB, Limits
from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.executors.beside import in_a_thread
from ringfence.operation.brokered import FsDelete, FsList, FsMkdir, FsOperation, FsRead, FsStat, FsWrite
from ringfence.outcome import BrokerOutcome, Budget, Digest, Effect
from ringfence.ports import ExecCtx
from ringfence.workspaces import files
from ringfence.workspaces.agent import AgentWorkspace
from ringfence.workspaces.files import Area, Found, Kind
from ringfence.workspaces.names import harmless, locate
from ringfence.workspaces.refusals import refusals

_MOST = 2**53  # what every JSON reader keeps exact


@dataclass(frozen=True, slots=True)
class FsCaps:
    """What one operation may move and look at; all of it is checked before anything is touched."""

    max_bytes_in: int = 16 * MIB
    max_bytes_out: int = 16 * MIB
    max_files: int | None = None
    max_depth: int = 32
    max_entries: int = 1000
    max_scanned: int = 100_000


_DEFAULT_CAPS = FsCaps()


class FsExecutor:
    """Implements `ports.Executor` for files: every operation opens the workspace of its session, and lets go of it."""

    def __init__(self, home: Path, temporary: Callable[[str], Mapping[str, Area]]) -> None:
        """Find the sessions of `home`; `temporary` returns the temporary spaces of a scope."""
        self._home = home
        self._temporary = temporary

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "fs"

    async def execute(self, ctx: ExecCtx, operation: FsOperation) -> BrokerOutcome:
        """Carry out `operation` beside the event loop, under the profile's limits; see `FsBroker.perform`."""
        session_id, profile = ctx.session(), ctx.profile
        caps = caps_of(profile.limits)

        def perform() -> BrokerOutcome:
            with AgentWorkspace(session_id, home=self._home, limits=profile.limits, tenant=profile.tenant) as workspace:
                broker = FsBroker({**workspace.areas(), **self._temporary(ctx.scope)})
                return broker.perform(operation, caps, inline=profile.output_inline)

        return await in_a_thread(profile.tenant, perform)


def caps_of(limits: Limits) -> FsCaps:
    """Return what one operation under these limits may move and look at."""
    return FsCaps(
        max_bytes_in=limits.max_bytes_in,
        max_bytes_out=limits.max_bytes_out,
        max_files=limits.max_files,
        max_depth=limits.max_depth,
    )


class FsBroker:
    """Serves one workspace, whose parts are `areas`: `work`, `inputs`, `artifacts`, `tmp/<name>`."""

    def __init__(self, areas: Mapping[str, Area]) -> None:
        """Serve `areas`; their descriptors stay the caller's and must outlive every operation."""
        self._areas = dict(areas)

    def perform(self, operation: FsOperation, caps: FsCaps = _DEFAULT_CAPS, *, inline: bool = False) -> BrokerOutcome:
        """Carry out `operation`; its content is in the outcome only if `inline`.

        Raises:
            PathTraversalError: The path leads out of the workspace (SANDBOX.CAPABILITY_BLOCKED).
            CapabilityBlocked: It is larger, deeper or of another kind than allowed; nothing was changed.
            InvalidRequest: It cannot be done as written: nothing of this name, or something of it.
            QuotaExceeded: It does not fit.
        """
        with refusals(str(operation.path)):
            where = _Location.find(self._areas, operation.path, caps.max_depth)
            match operation:
                case FsRead():
                    return _read(where, operation, caps, inline=inline)
                case FsWrite():
                    return _write(where, operation, caps)
                case FsList():
                    return _list(where, operation, caps)
                case FsStat():
                    return _stat(where)
                case FsMkdir():
                    return _mkdir(where, caps)
                case FsDelete():
                    return _delete(where)
        raise InvalidRequest("the file broker has no such operation", reason="unknown_operation")


@dataclass(frozen=True, slots=True)
class _Location:
    """Where a path lies: in an area, or (with `area` None) in the directory that only holds areas."""

    area: Area | None
    path: str
    virtual: str
    children: tuple[str, ...] = ()

    @classmethod
    def find(cls, areas: Mapping[str, Area], path: object, max_depth: int) -> _Location:
        if not isinstance(path, str):
            raise InvalidRequest(f"{path!r} is not a path", reason="invalid_path")
        parts = locate(path)
        virtual = "/".join(("/workspace", *parts))
        if len(parts) > max_depth:
            raise CapabilityBlocked(f"{path[:100]!a} is deeper than {max_depth} levels", reason="max_depth")
        for depth in (2, 1):
            area = areas.get("/".join(parts[:depth])) if len(parts) >= depth else None
            if area is not None:
                return cls(area, "/".join(parts[depth:]), virtual)
        below = sorted({name.split("/")[len(parts)] for name in areas if tuple(name.split("/"))[: len(parts)] == parts})
        if not below:
            raise CapabilityBlocked(
                f"{path[:100]!a} is in no part of the workspace", reason="path", fix=f"use one of {', '.join(areas)}"
            )
        return cls(None, "", virtual, tuple(below))

    def of_entry(self) -> Area:
        """Return the area, for what is done to an entry of it and not to the area itself."""
        if self.area is None or not self.path:
            raise CapabilityBlocked(f"{self.virtual} is the workspace's own", reason="read_only")
        return self.area


def _read(where: _Location, operation: FsRead, caps: FsCaps, *, inline: bool) -> BrokerOutcome:
    offset, length = _amount("offset", operation.offset, 0), _amount("len", operation.len, caps.max_bytes_in)
    if length > caps.max_bytes_in:
        raise CapabilityBlocked(
            f"len of {length} is more than the {caps.max_bytes_in} bytes one read may bring",
            reason="too_large",
            limit=caps.max_bytes_in,
        )
    if where.area is None or not where.path:
        raise InvalidRequest(f"{where.virtual} is a directory", reason="is_a_directory")
    found = files.read(where.area, where.path, offset=offset, most=length)
    size = len(found.content)
    sha256 = hashlib.sha256(found.content).hexdigest()
    out = {
        "path": where.virtual,
        "offset": offset,
        "bytes": size,
        "size": found.size,
        "truncated": found.truncated,
        "digest": Digest.of(found.content).to_dict(),
        "handle": f"fs:{offset}+{size}:{sha256}:{where.virtual}",
    }
    effect = Effect("read", {"path": where.virtual, "bytes": size})
    return BrokerOutcome("fs_read", out, found.content if inline else None, Budget(bytes_in=size), (effect,))


def _write(where: _Location, operation: FsWrite, caps: FsCaps) -> BrokerOutcome:
    if not isinstance(operation.content, bytes):  # the annotation binds only callers who check their types
        raise InvalidRequest("the content must be bytes", reason="invalid_content")
    size = len(operation.content)
    if size > caps.max_bytes_out:
        raise CapabilityBlocked(
            f"{size} bytes are more than the {caps.max_bytes_out} one write may bring",
            reason="too_large",
            limit=caps.max_bytes_out,
        )
    if operation.path.endswith("/"):
        raise InvalidRequest(f"{operation.path[:100]!a} names a directory", reason="is_a_directory")
    new = files.write(
        where.of_entry(), where.path, operation.content, overwrite=operation.overwrite, max_files=caps.max_files
    )
    sha256 = hashlib.sha256(operation.content).hexdigest()
    out = {
        "path": where.virtual,
        "bytes": size,
        "created": new,
        "digest": Digest.of(operation.content).to_dict(),
        "handle": f"fs:0+{size}:{sha256}:{where.virtual}",
    }
    effect = Effect("write", {"path": where.virtual, "bytes": size})
    return BrokerOutcome("fs_write", out, None, Budget(bytes_out=size, file_count=int(new), disk_bytes=size), (effect,))


def _list(where: _Location, operation: FsList, caps: FsCaps) -> BrokerOutcome:
    limit = _amount("limit", operation.limit, caps.max_entries)
    if not 0 < limit <= caps.max_entries:
        raise InvalidRequest(f"limit must be from 1 to {caps.max_entries}", reason="invalid_range")
    if where.area is None:
        page = files.Page(tuple(Found(name.encode(), Kind.DIRECTORY, 0, 0) for name in where.children), None)
    else:
        after = _parse_cursor(operation.cursor)
        page = files.list_page(where.area, where.path, after=after, most=limit, most_scanned=caps.max_scanned)
    out = {
        "path": where.virtual,
        "entries": [_entry(where.virtual, found) for found in page.entries],
        "cursor": None if page.after is None else base64.urlsafe_b64encode(page.after).decode(),
    }
    effect = Effect("read", {"path": where.virtual, "entries": len(page.entries)})
    return BrokerOutcome("fs_list", out, effects=(effect,))


def _stat(where: _Location) -> BrokerOutcome:
    found = Found(b"", Kind.DIRECTORY, 0, 0) if where.area is None else files.status(where.area, where.path)
    out = {"path": where.virtual, "kind": str(found.kind), "size": found.size, "modified_ns": found.modified_ns}
    return BrokerOutcome("fs_stat", out, effects=(Effect("read", {"path": where.virtual}),))


def _mkdir(where: _Location, caps: FsCaps) -> BrokerOutcome:
    new = files.make_directory(where.of_entry(), where.path, max_files=caps.max_files)
    effect = Effect("write", {"path": where.virtual})
    out = {"path": where.virtual, "created": new}
    return BrokerOutcome("fs_mkdir", out, None, Budget(file_count=int(new)), (effect,))


def _delete(where: _Location) -> BrokerOutcome:
    kind = files.delete(where.of_entry(), where.path)
    effect = Effect("write", {"path": where.virtual, "deleted": str(kind)})
    return BrokerOutcome("fs_delete", {"path": where.virtual, "kind": str(kind)}, effects=(effect,))


def _entry(directory: str, found: Found) -> dict[str, Any]:
    """Describe one entry: `name` to be shown, `path` to be asked for again, or `None` where no request can spell it."""
    return {
        "name": harmless(found.name),
        "path": _spelled(directory, found.name),
        "kind": str(found.kind),
        "size": found.size,
        "modified_ns": found.modified_ns,
    }


def _spelled(directory: str, name: bytes) -> str | None:
    try:
        path = f"{directory}/{name.decode()}"
        locate(path)
    except (UnicodeDecodeError, InvalidRequest):
        return None
    return path


def _amount(name: str, value: object, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST:
        raise InvalidRequest(f"{name} must be a whole number from 0", reason="invalid_range")
    return value


def _parse_cursor(cursor: str | None) -> bytes:
    if cursor is None:
        return b""
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True)
    except (ValueError, TypeError, binascii.Error):
        raise InvalidRequest("the cursor was not given out by a list", reason="invalid_range") from None
