"""The sections of a home's `config.toml`, each read by the part it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ringfence.errors import InvalidRequest

_CONFIG: Final = "config.toml"


def section_of(home: Path, name: str) -> Mapping[str, Any]:
    """Return a section, empty where nobody wrote it.

    Raises:
        InvalidRequest: The file cannot be read, or what has that name is no section.
    """
    path = home / _CONFIG
    if not path.exists():  # most homes have none, and a run does not pay for reading it
        return {}
    import tomllib

    try:
        section = tomllib.loads(path.read_text(encoding="utf-8")).get(name, {})
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error}", reason="invalid_config") from None
    if not isinstance(section, Mapping):
        raise wrong(name, "must be a section")
    return section


def wrong(key: str, fault: str, where: str = _CONFIG) -> InvalidRequest:
    """Return the refusal of what is written under `key`."""
    return InvalidRequest(f"{where}, {key}: {fault}", reason="invalid_config", fix=f"correct {key}, or leave it out")
