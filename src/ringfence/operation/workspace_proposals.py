"""Decisions about what a run would change in its project: commit it, discard it, or look at what waits."""

from __future__ import annotations

from typing import ClassVar

from ringfence.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WsCommit:
    """Apply what an execution proposed; with `force` also over what others changed meanwhile."""

    exec_id: str
    force: bool = False

    # it can be about any file there, so it takes the right to write all of them
    path: ClassVar[str] = "work"
    kind: ClassVar[str] = "ws_commit"
    domain: ClassVar[str] = "proposals"


@dataclass(frozen=True, slots=True)
class WsDiscard:
    """Forget what an execution proposed."""

    exec_id: str

    path: ClassVar[str] = "work"
    kind: ClassVar[str] = "ws_discard"
    domain: ClassVar[str] = "proposals"


@dataclass(frozen=True, slots=True)
class WsPending:
    """Tell what waits to be decided on."""

    path: ClassVar[str] = "work"
    kind: ClassVar[str] = "ws_pending"
    domain: ClassVar[str] = "proposals"


ProposalOperation = WsCommit | WsDiscard | WsPending
