"""Where Ringfence keeps its state on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.errors import InvalidRequest


def default_home() -> Path:
    """Return where state lives unless told otherwise.

    Raises:
        InvalidRequest: Nobody says where, as for a user without a home, such as a bare number in a container.
    """
    try:
        return Path(os.environ.get("RINGFENCE_HOME") or Path.home() / ".ringfence").absolute()
    except (RuntimeError, FileNotFoundError) as error:
        raise InvalidRequest(
            f"there is no home to keep state in: {error}",
            reason="invalid_value",
            fix="set RINGFENCE_HOME to a directory",
        ) from None
