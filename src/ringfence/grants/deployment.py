"""What this deployment is called in grants that are made for it alone: `audience` under `[grants]` of `config.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ringfence.workspaces import home_config

_LONGEST: Final = 256


def audience_of(home: Path) -> str:
    """Return the name, or nothing where nobody gave it one: then only grants for any deployment are good here.

    Raises:
        InvalidRequest: It is not written so.
    """
    section = home_config.section_of(home, "grants")
    if unknown := ", ".join(section.keys() - {"audience"}):
        raise home_config.wrong(f"grants.{unknown}", "is no setting of this section, which has audience")
    name = section.get("audience")
    if name is None:
        return ""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST or not name.isprintable():
        raise home_config.wrong("grants.audience", f"must be a name of 1 to {_LONGEST} characters, not {name!r}")
    return name
