"""What of the host the operator shows in every box: `[workspace.ro_mounts]` of the home's `config.toml`, and only that.

    [workspace.ro_mounts]
    toolchain = "/opt/toolchains/arm"      # seen as /mnt/toolchain, for reading

No request, policy, skill or project can name a path of the host: what is not written here is nowhere in a box.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ringfence.workspaces.home_config import section_of, wrong

MOST_MOUNTS: Final = 32
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
# what the kernel, the system's services and their sockets say to each other there is not for a guest
_NEVER: Final = ("/proc", "/sys", "/dev", "/run")


def read_only_mounts(home: Path) -> tuple[tuple[str, str], ...]:
    """Return the directories of the host that every box of this home shows, and where it shows them.

    Raises:
        InvalidRequest: A name or a path cannot be one of them; the message names it.
    """
    section = section_of(home, "workspace")
    for key in section:
        if key != "ro_mounts":
            raise wrong(f"workspace.{key}", "there is no such key; known: ro_mounts")
    declared = section.get("ro_mounts", {})
    if not isinstance(declared, Mapping) or len(declared) > MOST_MOUNTS:
        raise wrong("workspace.ro_mounts", f"must be a section of at most {MOST_MOUNTS} names and paths")
    return tuple((_checked(name, path, home), f"/mnt/{name}") for name, path in sorted(declared.items()))


def _checked(name: str, path: object, home: Path) -> str:
    key = f"workspace.ro_mounts.{name[:100]}"
    if not _NAME.match(name):
        raise wrong(key, "a name is 1 to 63 lower-case letters, digits, '-' or '_'")
    if not isinstance(path, str) or not path.startswith("/") or not path.isprintable():
        raise wrong(key, "must be an absolute path")
    real = os.path.realpath(path)
    if not os.path.isdir(real):
        raise wrong(key, f"{path} is no directory")
    own = os.path.realpath(home)
    # keys and evidence lie there, and the files of every project
    if _is_within(own, real) or _is_within(real, own):
        raise wrong(key, f"{path} and the home of this installation lie within each other")
    if any(_is_within(real, never) for never in _NEVER):
        raise wrong(key, f"{path} is the system's own")
    return real


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
