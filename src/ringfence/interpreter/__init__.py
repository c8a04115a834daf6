"""A Python interpreter that keeps its variables from one cell to the next, inside one long-running box."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def program() -> str:
    """Return the program that runs in the box of a session."""
    return (resources.files(__name__) / "driver.py").read_text()
