"""The accessibility tree of a page as a list that an agent can read: in order, with depths, and only so long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

DEEPEST: Final = 64
_LONGEST: Final = 500
_SILENT: Final = frozenset({"none", "generic", "InlineTextBox", "LineBreak"})


def outline(nodes: Sequence[Mapping[str, Any]], most: int) -> dict[str, Any]:
    """Return the nodes that mean something, at most `most` of them, each with its depth, role, name and value."""
    by_id = {node.get("nodeId"): node for node in nodes}
    found: list[dict[str, Any]] = []
    seen: set[Any] = set()
    waiting = [(nodes[0].get("nodeId"), 0)] if nodes else []
    while waiting and len(found) < most:
        identity, depth = waiting.pop()
        node = by_id.get(identity)
        if node is None or identity in seen:
            continue
        seen.add(identity)
        role, name, value = (_text(node.get(key)) for key in ("role", "name", "value"))
        shown = not node.get("ignored") and role not in _SILENT and (name or value or role != "StaticText")
        if shown:
            found.append({"depth": depth, "role": role, "name": name} | ({"value": value} if value else {}))
        below = min(depth + 1, DEEPEST) if shown else depth
        waiting += [(child, below) for child in reversed(node.get("childIds") or ())]
    return {"nodes": found, "truncated": bool(waiting)}


def _text(value: Any) -> str:
    inner = value.get("value") if isinstance(value, Mapping) else None
    return str(inner)[:_LONGEST] if inner is not None else ""
