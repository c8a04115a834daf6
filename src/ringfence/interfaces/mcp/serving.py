"""Runs the server of the protocol for one client that started it, over an engine of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import anyio

from ringfence.authority.caller import LOCAL
from ringfence.dataclass import dataclass
from ringfence.facade import SandboxManager
from ringfence.interfaces.mcp.server import Seat, build
from ringfence.interfaces.mcp.stdio import Wire, connected, taken_over


@dataclass(frozen=True, slots=True)
class Serving:
    """For whom and under which rules an embedded server acts."""

    project: str = "mcp"
    policy: str | None = None
    role: str | None = None
    skills: str | None = None
    home: Path | None = None

    def manager(self) -> SandboxManager:
        """Return the manager that every call of the client goes through."""
        skills = [self.skills] if self.skills is not None else None
        return SandboxManager(self.project, policy_file=self.policy, role=self.role, skills=skills, home=self.home)


def serve_stdio(serving: Serving) -> int:
    """Serve the client at standard input and output until it goes; return the exit code."""
    with taken_over() as wire:  # before anything is started that could write to either
        log_to_stderr()
        return asyncio.run(_serve(serving, wire))


async def _serve(serving: Serving, wire: Wire) -> int:
    ended = 0
    async with serving.manager() as manager:
        seat = Seat(manager, LOCAL, serving.project)
        server = build(lambda _context: seat)
        with anyio.CancelScope() as scope:

            def stop(signum: int) -> None:
                nonlocal ended
                ended = 128 + signum
                scope.cancel()

            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    asyncio.get_running_loop().add_signal_handler(signum, stop, signum)
            async with connected(wire) as (arrived, leaving):
                await server.run(arrived, leaving, server.create_initialization_options())
    return ended


def log_to_stderr() -> None:
    """Send what is worth a person's attention to where nothing else is."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="ringfence mcp: %(levelname)s: %(message)s")
