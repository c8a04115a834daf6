"""Where the box shows what a runtime brings; apart from the runtimes, which cost more to import."""

from __future__ import annotations

from pathlib import Path

BOX_PACKAGES = Path("/opt/ringfence/packages")
