"""Whole files of a project for AIO's calls: read for their bytes, written in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.operation import brokered

if TYPE_CHECKING:
    from ringfence.facade import SandboxManager


async def content_of(manager: SandboxManager, path: str, *, or_empty: bool = False) -> bytes:
    """Return all of a file; with `or_empty` nothing where there is none.

    Raises:
        InvalidRequest: There is none, or it is a directory.
        CapabilityBlocked: It is larger than one operation reads: half a file must not pass for a whole one.
    """
    try:
        read = await manager.perform(brokered.FsRead(path))
    except InvalidRequest as refused:
        if or_empty and refused.reason == "not_found":
            return b""
        raise
    if read.content is None:
        raise CapabilityBlocked("the policy does not hand out contents", reason="blocked")
    if read.out["truncated"]:
        raise CapabilityBlocked(
            f"the file has {read.out['size']} bytes, more than one call reads", reason="too_large", fix="download it"
        )
    return read.content


async def write_file(manager: SandboxManager, path: str, content: bytes) -> None:
    """Put a file there, in the place of one that is there.

    Raises:
        RingfenceError: Whatever refused it; nothing was changed.
    """
    await manager.perform(brokered.FsWrite(path, content, overwrite=True))
