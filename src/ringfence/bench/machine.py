"""The machine a measurement was taken on, so that a quoted ratio can be understood."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

from ringfence import __version__
from ringfence.bench.bare import interpreter


def machine() -> dict[str, str]:
    """Return what matters about this machine, in the words shown to people."""
    return {
        "ringfence": __version__,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": f"{os.cpu_count()} x {_first('/proc/cpuinfo', 'model name') or platform.machine()}",
        "memory": f"{int((_first('/proc/meminfo', 'MemTotal') or '0 kB').split()[0]) / 1e6:.1f} GB",
        "kernel": platform.release(),
        "python": f"{platform.python_version()} ({interpreter()})",
        "user": "root" if os.geteuid() == 0 else "ordinary",
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def _first(path: str, name: str) -> str | None:
    for line in Path(path).read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None
