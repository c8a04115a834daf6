"""Which Chromium shows the pages, and the command line that leaves it nothing but the page and the proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ringfence.errors import Unavailable

# The programs themselves: the scripts before them source what they find in /etc, load extensions and add keys.
_PROGRAMS: Final = (
    "/usr/lib/chromium/chromium",
    "/usr/lib64/chromium-browser/chromium-browser",
    "/usr/lib64/chromium/chromium",
)
_FIX: Final = "apt-get install chromium, and pip install 'ringfence[browser]'"


def find_chromium() -> str:
    """Return the system's Chromium.

    Raises:
        Unavailable: There is none (`browser_backend_missing`).
    """
    for program in _PROGRAMS:
        if Path(program).is_file():
            return program
    raise Unavailable(
        "no Chromium is installed where ringfence looks for one", reason="browser_backend_missing", fix=_FIX
    )
