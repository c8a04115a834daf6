"""Where Ringfence keeps its state on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """Return where state lives unless told otherwise."""
    return Path(os.environ.get("RINGFENCE_HOME") or Path.home() / ".ringfence").absolute()
