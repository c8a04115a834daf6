"""Files: a capability is a directory of the workspace, perhaps with globs that a path must match as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ringfence.capability.glob import is_glob, literal_root, matches_path, path_glob
from ringfence.capability.kind import Kind, invalid
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.operation.path import host_path, is_beneath, workspace_path

if TYPE_CHECKING:
    from ringfence.operation import brokered, needs
    from ringfence.operation.form import Operation


@dataclass(frozen=True, slots=True)
class _Beneath(Kind):
    """A path, everything below it, and only what matches all of `only`; a glob as the path becomes both."""

    path: str
    only: frozenset[str] = frozenset()

    operations: ClassVar[frozenset[str]]

    def __post_init__(self) -> None:
        path = path_glob(self.path)
        only = frozenset(map(path_glob, self.only))
        if is_glob(path):
            root = literal_root(path)
            # `inputs/**` is the directory itself, and needs no filter
            only = only if path == f"{root}/**" else only | {path}
            path = root
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "only", only)

    def meet(self, other: Kind) -> Self | None:
        """Return the deeper of two nested directories, with the globs of both."""
        if type(other) is not type(self):
            return None
        if is_beneath(self.path, other.path):
            return type(self)(self.path, self.only | other.only)
        if is_beneath(other.path, self.path):
            return type(self)(other.path, self.only | other.only)
        return None

    def is_within(self, other: Kind) -> bool:
        """Whether the other's directory is this one or above it, and it has no glob more; without making a meet."""
        return type(other) is type(self) and self.only >= other.only and is_beneath(self.path, other.path)

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations, and paths outside."""
        if operation.kind not in self.operations:
            return "not_granted"
        try:
            path = workspace_path(cast("brokered.FsRead", operation).path)
        except InvalidRequest:
            return "path"
        return None if self.covers(path) else "path"

    def covers(self, path: str) -> bool:
        """Whether a path in its one spelling is among those it is for."""
        return is_beneath(path, self.path) and all(matches_path(glob, path) for glob in self.only)

    def fields(self) -> dict[str, Any]:
        """Return the path, and the globs if there are any."""
        return {"path": self.path, "only": sorted(self.only)} if self.only else {"path": self.path}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read a path and perhaps globs."""
        only = fields.get("only", [])
        if not isinstance(only, list) or not all(isinstance(glob, str) for glob in only):
            raise invalid(cls.tag, "only must be a list of globs")
        if "path" not in fields:
            raise invalid(cls.tag, "path is missing")
        return cls(fields["path"], frozenset(only))

    def resource(self) -> str:
        """Return the path and the globs, joined by `&`."""
        return "&".join(_escaped(part) for part in (self.path, *sorted(self.only)))

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read paths joined by `&`."""
        path, *only = (part.replace("%26", "&").replace("%25", "%") for part in resource.split("&"))
        return cls(path, frozenset(only))


class FsRead(_Beneath):
    """Read files below a path; of the work directory as a whole, also what changed in it."""

    __slots__ = ()
    tag = "FsRead"
    name = "fs.read"
    operations = frozenset({"fs_read", "ws_diff", "ws_snapshots", "ws_pending"})


class FsWrite(_Beneath):
    """Write, make and delete files below a path; reading them is another capability."""

    __slots__ = ()
    tag = "FsWrite"
    name = "fs.write"
    operations = frozenset(
        {"fs_write", "fs_mkdir", "fs_delete", "ws_snapshot", "ws_restore", "ws_reset", "ws_snapshot_delete"}
    ) | {"ws_commit", "ws_discard", "ws_checkout"}


class FsList(_Beneath):
    """List directories below a path and say what is there, without reading what is in the files."""

    __slots__ = ()
    tag = "FsList"
    name = "fs.list"
    # `fs_stat` is here alone: were it in `FsRead` too, the two would have more in common than their meet, nothing
    operations = frozenset({"fs_list", "fs_stat"})


@dataclass(frozen=True, slots=True)
class FsHost(Kind):
    """Have a path of the host, and what is below it, in the box: dangerous, and never granted by default."""

    path: str

    tag: ClassVar[str] = "FsHost"
    name: ClassVar[str] = "fs.host"

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", host_path(self.path))

    def meet(self, other: Kind) -> FsHost | None:
        """Return the deeper of two nested directories."""
        if not isinstance(other, FsHost):
            return None
        if is_beneath(self.path, other.path):
            return self
        return other if is_beneath(other.path, self.path) else None

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations, and paths outside."""
        if operation.kind != "host_use":
            return "not_granted"
        try:
            path = host_path(cast("needs.HostUse", operation).path)
        except InvalidRequest:
            return "path"
        return None if is_beneath(path, self.path) else "path"

    def fields(self) -> dict[str, Any]:
        """Return the path."""
        return {"path": self.path}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read a path."""
        return cls(fields.get("path"))  # type: ignore[arg-type]  # refused by host_path

    def resource(self) -> str:
        """Return the path."""
        return self.path

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read a path."""
        return cls(resource)


def _escaped(path: str) -> str:
    return path.replace("%", "%25").replace("&", "%26")
