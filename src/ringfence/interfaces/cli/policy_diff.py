"""`ringfence policy diff`: what calls may do more or less under another policy, the same change said once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from ringfence.authority.limit_names import shown
from ringfence.authority.policy_diff import Change, Direction, diff
from ringfence.authority.policy_keys import LIMIT_KEYS
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.policy import load, print_json
from ringfence.interfaces.cli.render import one_line


def diff_command(words: Sequence[str]) -> int:
    """Carry out `ringfence policy diff` and return the exit code."""
    parser = StrictParser(prog="ringfence policy diff")
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--fail-on-widening", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    before, after = load(options.old), load(options.new)
    changes = diff(before, after)
    count = {str(direction): sum(change.direction is direction for change in changes) for direction in Direction}
    if options.json:
        print_json(
            {
                "old": {"file": options.old, "policy_version_hash": before.policy_version_hash},
                "new": {"file": options.new, "policy_version_hash": after.policy_version_hash},
                **count,
                "changes": [_fields(change) for change in changes],
            }
        )
    else:
        sys.stdout.writelines(one_line(line) for line in _lines(changes, count))
        sys.stdout.flush()
    # What changed both ways let something new in, and of a rule nobody knows the way: neither passes for narrower.
    narrower = all(change.direction is Direction.NARROWED for change in changes)
    return 1 if options.fail_on_widening and not narrower else 0


def _lines(changes: Iterable[Change], count: Mapping[str, int]) -> Iterator[str]:
    """Say each change once, and below it whose it is."""
    whose: dict[str, dict[str, list[str]]] = {}
    for change in changes:
        said = f"{change.direction}: {change.setting}: {_shown(change, change.before)} → {_shown(change, change.after)}"
        role = change.role or ("every role" if change.tool == "every tool" else "no role")
        whose.setdefault(said, {}).setdefault(role, []).append(change.tool)
    for said, tools in whose.items():
        yield said
        for role, names in tools.items():
            yield f"    {role}: {', '.join(names)}"
    totals = ", ".join(f"{number} {word}" for word, number in count.items())
    yield totals if whose else "no call may do more or less than before"


def _shown(change: Change, value: Any) -> str:
    if change.setting in LIMIT_KEYS:
        return shown(LIMIT_KEYS[change.setting][0], value)
    if value is None:
        return "allowed" if change.setting == "access" else "—"
    if isinstance(value, tuple) and all(isinstance(entry, str | int) for entry in value):
        return ", ".join(map(str, value)) or "none"
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _fields(change: Change) -> dict[str, Any]:
    return {
        "direction": str(change.direction),
        "role": change.role,
        "tool": change.tool,
        "setting": change.setting,
        "before": _plain(change.before),
        "after": _plain(change.after),
    }


def _plain(value: Any) -> Any:
    """Return a setting as JSON values, without what its author left out."""
    if isinstance(value, Enum):
        return str(value.value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(entry) for name, entry in _stated(value).items()}
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, frozenset):
        return sorted(map(_plain, value))
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def _stated(value: Any) -> dict[str, Any]:
    """Leave out the line as well: where a rule stands is not what it says."""
    form = {name: getattr(value, name) for name in value.__dataclass_fields__ if name != "line"}
    return {name: entry for name, entry in form.items() if entry is not None and entry not in ("", ())}
