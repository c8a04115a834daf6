"""Who stands at the door: the caller that a key speaks for, and how far its access reaches."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ringfence.authority.caller import NOBODY_ELSE, Caller
from ringfence.dataclass import dataclass

EVERY_TENANT: Final = "*"
"""What a key for operators or auditors of the whole instance has as its tenant."""


class Access(StrEnum):
    """What a key is for; the word role means the agent role of the policy, and never this."""

    ADMIN = "admin"
    """Everything, of every tenant, and the keys themselves."""
    OPERATOR = "operator"
    """Health, metrics, and seeing and stopping what runs."""
    AUDITOR = "auditor"
    """Reading evidence and metrics."""
    AGENT = "agent"
    """Running things: executions, operations, processes, workspaces, skills."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose key was checked; `key_id` names the key, or the way in that needs none."""

    caller: Caller
    access: Access
    key_id: str
    everywhere: bool = False
    """Whether it reads what belongs to any tenant, and not to its own alone."""
    role: str | None = None
    """The agent role of the policy that it acts in, where its key was made for one."""

    @property
    def tenant(self) -> str:
        """Return the tenant whose files and executions are the caller's own."""
        return self.caller.tenant

    @property
    def reads(self) -> str | None:
        """Return the one tenant whose evidence, executions and numbers it may see; None is all of them."""
        return None if self.everywhere else self.caller.tenant

    def may(self, *accesses: Access) -> bool:
        """Whether its access is one of these; an admin's always is."""
        return self.access is Access.ADMIN or self.access in accesses


OWNER: Final = Principal(NOBODY_ELSE, Access.ADMIN, "owner", everywhere=True)
"""Whoever comes through the socket in the home, which only the home's owner can reach."""
