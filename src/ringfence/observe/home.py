"""What a home and the environment say about who is told, and how far each of them has come."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ringfence.errors import InvalidRequest
from ringfence.observe.lane import Position
from ringfence.observe.settings import ObserveSettings, read_settings, with_environment

CONFIG: Final = "config.toml"
_POSITIONS: Final = "observed.json"


def settings_of(home: Path, environment: Mapping[str, str]) -> ObserveSettings:
    """Return the `[observe]` section of the home's `config.toml`, with what the environment says above it.

    Raises:
        InvalidRequest: One of them is not written as it should be; the message names the place.
    """
    return with_environment(read_settings(_section(home / CONFIG)), environment)


def read_positions(home: Path) -> dict[str, Position]:
    """Return how far each sink had come; of a file that is gone or damaged nothing is known, and all is told again."""
    try:
        found = json.loads((home / _POSITIONS).read_bytes())
        return {str(name): {str(log): int(seq) for log, seq in place.items()} for name, place in found.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def write_positions(home: Path, positions: Mapping[str, Position]) -> None:
    """Keep how far each sink has come; where that fails, some of it is told again."""
    with contextlib.suppress(OSError):
        fd, name = tempfile.mkstemp(dir=home, prefix=f".{_POSITIONS}.")
        try:
            with os.fdopen(fd, "w") as file:
                json.dump(positions, file)
            Path(name).replace(home / _POSITIONS)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _section(path: Path) -> Any:
    import tomllib

    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error}", reason="invalid_config") from None
    return written.get("observe", {})
