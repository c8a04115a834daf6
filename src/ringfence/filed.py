"""The part of a manager that has to do with its session's files; what carries it out comes with the first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.managed_workspace import ManagedWorkspace


class Filed:
    """Gives a manager with a `perform` of its own the files of its session."""

    _session_id: str | None
    perform: Any

    async def redeem(self, handle: str) -> bytes:
        """Return the very bytes that the `handle` in an outcome's `out` stands for, as one more operation of reading.

        Raises:
            InvalidRequest: It is no handle, or nothing is there any more.
            CapabilityBlocked: The file no longer holds these bytes, or the policy keeps contents out of results.
        """
        from ringfence.operation.handle import read_handle

        found = read_handle(handle)
        return found.require_same((await self.perform(found.read)).content)

    @property
    def workspace(self) -> ManagedWorkspace:
        """The session's files: read, write, list, diff, snapshot, restore, reset; each an operation of its own.

        Raises:
            InvalidRequest: The manager is of no session, and so has no workspace.
        """
        from ringfence.managed_workspace import ManagedWorkspace

        if self._session_id is None:
            raise InvalidRequest(
                "without a session there is no workspace", reason="invalid_session_id", fix="give a session_id"
            )
        return ManagedWorkspace(self.perform)
