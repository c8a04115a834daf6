"""What the tests of browsers see of processes, from outside, as the host does."""

from __future__ import annotations

import select
from pathlib import Path


def below(pid: int) -> dict[int, str]:
    """Return every process that descends from `pid`, with its name."""
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            children = [int(child) for child in readable(str(task)).split()]
            waiting += children
            found |= {child: readable(f"/proc/{child}/comm").decode().strip() for child in children}
    return found


def renderers(browser: int) -> list[int]:
    return [pid for pid in below(browser) if b"--type=renderer" in readable(f"/proc/{pid}/cmdline")]


def readable(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def field(status: str, name: str) -> str:
    (line,) = (line for line in status.splitlines() if line.startswith(f"{name}:"))
    return line.partition(":")[2].strip()


def ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(20_000))
