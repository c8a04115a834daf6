"""One session's files as its application sees them: the same relative path means the same file in the box."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ringfence.authority.caller import LOCAL
from ringfence.capability.limits import Limits
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded
from ringfence.workspaces import files
from ringfence.workspaces.files import Area
from ringfence.workspaces.home import default_home
from ringfence.workspaces.names import harmless, locate
from ringfence.workspaces.refusals import refusals
from ringfence.workspaces.session import SessionWorkspace

_LIMITS = Limits()
_MOST_LISTED = 10_000


class AgentWorkspace:
    """Reads and writes the files that the runs of one session share.

    Paths are relative to `/workspace/work`, where every run of the session starts, or written as `/workspace/...`. Only
    the work directory can be written; every other absolute path, `..` and every symlink is refused.
    """

    def __init__(
        self,
        session_id: str,
        *,
        home: Path | None = None,
        limits: Limits = _LIMITS,
        in_tree_links: bool = False,
        tenant: str = LOCAL,
    ) -> None:
        """Open the workspace of `session_id`, making it at first use; `home` is as for `SandboxManager`.

        Raises:
            InvalidRequest: `session_id` is not a plain name.
        """
        if not isinstance(session_id, str):
            raise InvalidRequest(f"session_id must be text, not {session_id!r}", reason="invalid_session_id")
        self._session = SessionWorkspace.create(home or default_home(), session_id, tenant=tenant)
        self._close = weakref.finalize(self, self._session.close)
        self._limits = limits
        self._links = in_tree_links

    @property
    def session_id(self) -> str:
        """The session whose runs see these files."""
        return self._session.id

    def write_file(self, path: str, content: str | bytes) -> None:
        """Write a whole file, replacing one that is there; missing directories are made.

        Raises:
            PathTraversalError: `path` leads out of the workspace.
            QuotaExceeded: The session's files would outgrow their quota; nothing was written.
        """
        if not isinstance(content, str | bytes):
            raise InvalidRequest(f"content must be text or bytes, not {content!r}", reason="invalid_content")
        data = content.encode() if isinstance(content, str) else content
        if len(data) > self._limits.file_bytes:
            raise QuotaExceeded(
                f"a file is at most {self._limits.file_bytes} bytes", reason="disk", limit=self._limits.file_bytes
            )
        with refusals(str(path)):
            area, inside = self._find(path)
            files.write(area, inside, data, overwrite=True)

    def read_file(self, path: str) -> str:
        """Return the text of a file.

        Raises:
            PathTraversalError: `path` leads out of the workspace.
            InvalidRequest: There is no such file, or it is not UTF-8 text.
        """
        try:
            return self.read_bytes(path).decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(
                f"{path[:100]!a} is not UTF-8 text (byte {error.start})", reason="invalid_text", fix="use read_bytes"
            ) from None

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file.

        Raises:
            PathTraversalError: `path` leads out of the workspace.
            CapabilityBlocked: The file is larger than a file of a session may be.
        """
        most = self._limits.file_bytes
        with refusals(str(path)):
            area, inside = self._find(path)
            if files.status(area, inside).size > most:  # before a giant of holes becomes as many bytes of memory
                raise CapabilityBlocked(f"{path[:100]!a} is larger than {most} bytes", reason="too_large", limit=most)
            found = files.read(area, inside, offset=0, most=most)
        if found.truncated:
            raise CapabilityBlocked(f"{path[:100]!a} grew while it was read", reason="changed")
        return found.content

    def list_files(self, path: str = "") -> list[str]:
        """Return the names in a directory, each made harmless to print.

        Raises:
            PathTraversalError: `path` leads out of the workspace.
            CapabilityBlocked: There are more of them than one listing holds.
        """
        with refusals(str(path)):
            area, inside = self._find(path, directory=True)
            page = files.list_page(area, inside, after=b"", most=_MOST_LISTED, most_scanned=_MOST_LISTED)
        return [harmless(found.name) for found in page.entries]

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory at `path`.

        Raises:
            PathTraversalError: `path` leads out of the workspace.
        """
        try:
            with refusals(str(path)):
                area, inside = self._find(path, directory=True)
                files.status(area, inside)
        except InvalidRequest as error:
            if error.reason in ("not_found", "not_a_directory"):
                return False
            raise
        return True

    def delete_file(self, path: str) -> None:
        """Delete a file, a link's own name or an empty directory.

        Raises:
            PathTraversalError: `path` leads out of the workspace.
            InvalidRequest: There is nothing of this name, or a directory with entries.
        """
        with refusals(str(path)):
            area, inside = self._find(path)
            files.delete(area, inside)

    def areas(self) -> Mapping[str, Area]:
        """Return the parts of this workspace for a broker; good until `close`.

        Raises:
            InvalidRequest: The workspace is closed.
        """
        if not self._close.alive:  # its descriptors may be anybody's by now
            raise InvalidRequest("the workspace is closed", reason="invalid_handle")
        session = self._session
        work = Area(
            session.work_fd,
            owner=session.owner,
            in_tree_links=self._links,
            max_bytes=self._limits.disk_bytes,
            max_files=self._limits.inodes,
            changing=session.changing,
            using=session.using,
        )
        inputs = Area(session.inputs_fd, writable=False, in_tree_links=self._links)
        artifacts = Area(session.artifacts_fd, writable=False, in_tree_links=self._links)
        return {"work": work, "inputs": inputs, "artifacts": artifacts}

    def close(self) -> None:
        """Let go of the workspace; its files stay."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _find(self, path: str, *, directory: bool = False) -> tuple[Area, str]:
        if not isinstance(path, str):
            raise InvalidRequest(f"{path!r} is not a path", reason="invalid_path")
        name, *inside = locate(path, base="work") or ("",)
        area = self.areas().get(name)
        if area is None:
            raise CapabilityBlocked(f"{path[:100]!a} is in no part of the workspace", reason="path")
        if not directory and (not inside or path.endswith("/")):
            raise InvalidRequest(f"{path[:100]!a} names a directory", reason="is_a_directory")
        return area, "/".join(inside)
