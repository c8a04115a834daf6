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


def line_of(home: Path, section: str, key: str) -> str:
    """Return the file and, where it can be found, the line in which a section says `key`."""
    inside = False
    for number, line in enumerate((home / _CONFIG).read_text(encoding="utf-8").splitlines(), 1):
        words = line.split("#")[0].strip()
        if words.startswith("["):
            inside = words.strip("[] ") == section
        elif inside and words.partition("=")[0].strip(" \"'") == key:
            return f"{_CONFIG}:{number}"
    return _CONFIG


def wrong(key: str, fault: str, where: str = _CONFIG) -> InvalidRequest:
    """Return the refusal of what is written under `key`."""
    return InvalidRequest(f"{where}, {key}: {fault}", reason="invalid_config", fix=f"correct {key}, or leave it out")
