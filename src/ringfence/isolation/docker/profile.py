"""Which system calls a container may make: our own profile, unless the operator has one."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.isolation.docker.settings import EngineSettings


def seccomp_profile(settings: EngineSettings, home: Path) -> str:
    """Return where the profile lies that containers are held to."""
    if settings.seccomp is not None:
        return os.fspath(settings.seccomp)
    return str(home)
