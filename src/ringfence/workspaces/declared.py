"""What of the host the operator shows in every box: `[workspace.ro_mounts]` of the home's `config.toml`, and only that.

    [workspace.ro_mounts]
    toolchain = "/opt/toolchains/arm"      # seen as /mnt/toolchain, for reading

No request, policy, skill or project can name a path of the host: what is not written here is nowhere in a box.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ringfence.workspaces.home_config import section_of, wrong

MOST_MOUNTS: Final = 32
_KEYS: Final = ("ro_mounts", "repositories")


def read_only_mounts(home: Path) -> tuple[tuple[str, str], ...]:
    """Return the directories of the host that every box of this home shows, and where it shows them.

    Raises:
        InvalidRequest: A name or a path cannot be one of them; the message names it.
    """
    declared = declared_in(home, "ro_mounts", MOST_MOUNTS)
    if not declared:
        return ()
    from ringfence.workspaces.host_directories import checked_directory  # not at the top: most homes show nothing

    return tuple(
        (checked_directory(f"workspace.ro_mounts.{name[:100]}", name, path, home), f"/mnt/{name}")
        for name, path in sorted(declared.items())
    )


def declared_in(home: Path, key: str, most: int) -> Mapping[str, Any]:
    """Return one part of the section `workspace`, empty where nobody wrote it.

    Raises:
        InvalidRequest: The section has a key that nobody knows, or this one is no list of names.
    """
    section = section_of(home, "workspace")
    for found in section:
        if found not in _KEYS:
            raise wrong(f"workspace.{found}", f"there is no such key; known: {', '.join(_KEYS)}")
    declared = section.get(key, {})
    if not isinstance(declared, Mapping) or len(declared) > most:
        raise wrong(f"workspace.{key}", f"must be a section of at most {most} names and paths")
    return declared
