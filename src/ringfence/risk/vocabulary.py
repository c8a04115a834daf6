"""Word lists as they read best: the tables of the risk package are lines of names, not columns of quotes."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """Return the names in `text`."""
    return frozenset(text.split())
