"""The ways to a manager that one contract holds for: an engine of its own, a service by port, a service by socket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence import SandboxManager

PROGRAMS = """
policies:
  tools:
    proc_exec:
      allowed_commands: [ls]
"""


@dataclass(frozen=True)
class Door:
    """One way to a manager, and the embedded one to compare it with."""

    name: str
    home: Path
    policy: Path
    state: Path
    """The home of whoever carries it out."""
    arguments: dict[str, Any]

    def manager(self, session_id: str | None = None, **more: Any) -> SandboxManager:
        return SandboxManager(session_id, **self.arguments, **more)

    def embedded(self, session_id: str | None = None, **more: Any) -> SandboxManager:
        return SandboxManager(session_id, home=self.home / "beside", policy_file=self.policy, pool_size=1, **more)
