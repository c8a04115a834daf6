"""A skill to begin from, which each test changes in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringfence.skills.skill import Skill, read_skill

MAIN = b'import json, sys\nprint(json.dumps({"n": json.load(sys.stdin)["n"] + 1}))\n'
FORM: dict[str, Any] = {
    "schema_version": 1,
    "id": "add.one",
    "name": "Add one",
    "description": "Adds one to a number.",
    "interface": {
        "inputs": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "outputs": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
    "runtime": {"kind": "docker", "image": "ringfence/sandbox:latest", "entrypoint": ["python", "main.py"]},
    "permissions": {"fs": {"read": [], "write": []}, "net": {"mode": "none"}},
    "limits": {"timeout_ms": 20000},
}


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the form with other values at dotted paths; `...` takes one away."""
    form: dict[str, Any] = json.loads(json.dumps(FORM))
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = form
        for name in parents:
            place = place.setdefault(name, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return form


def skill(files: dict[str, bytes] | None = None, **changes: Any) -> Skill:
    """Return the skill; dots in paths are written as two underscores."""
    form = changed({path.replace("__", "."): value for path, value in changes.items()})
    found, findings = read_skill(
        json.dumps(form).encode(), {"main.py": MAIN} if files is None else files, directory=form["id"]
    )
    assert found is not None, findings
    return found


def put(shelf: Path, files: dict[str, bytes] | None = None, **changes: Any) -> Path:
    """Write the skill into a directory of skills, and return its own."""
    form = changed({path.replace("__", "."): value for path, value in changes.items()})
    directory = shelf / str(form["id"])
    directory.mkdir(parents=True)
    (directory / "manifest.json").write_text(json.dumps(form))
    for name, content in ({"main.py": MAIN} if files is None else files).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory
