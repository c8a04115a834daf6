"""`ringfence skill`: what skills there are, what is wrong with them, and calling one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.policy import print_json
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from argparse import Namespace

    from ringfence.authority.finding import Finding
    from ringfence.skills.shelf import Shelf
    from ringfence.skills.skill import Skill


def skill_command(words: Sequence[str]) -> int:
    """Carry out `ringfence skill ACTION` and return the exit code."""
    action, rest = (words[0], list(words[1:])) if words else ("", [])
    if action == "invoke":
        from ringfence.interfaces.cli.skill_invoke import invoke_command

        return invoke_command(rest)
    if action in _ACTIONS:
        return _ACTIONS[action](rest)
    wrong = f"there is no 'ringfence skill {action}'" if action else "'ringfence skill' takes an action"
    raise UsageError(wrong, fix=f"give one of {', '.join((*_ACTIONS, 'invoke'))} first")


def parser_of(action: str) -> StrictParser:
    """Return a parser with what every action takes."""
    parser = StrictParser(prog=f"ringfence skill {action}")
    parser.add_argument("--skills", action="append", default=[], metavar="DIR")
    parser.add_argument("--home")
    parser.add_argument("--json", action="store_true")
    return parser


def _shelf(options: Namespace) -> Shelf:
    from ringfence.skills.shelf import Shelf
    from ringfence.workspaces.home import default_home

    home = Path(options.home) if options.home is not None else default_home()
    return Shelf(tuple(map(Path, options.skills)), home=home)


def _list(words: list[str]) -> int:
    options = parser_of("list").parse_args(words)
    found = _shelf(options).read()
    if options.json:
        print_json(
            {
                "skills": [skill.to_dict() for skill in found.skills.values()],
                "findings": [finding.to_json() for finding in found.findings],
            }
        )
        return 0
    from ringfence.interfaces.cli.render import one_line

    width = max(map(len, found.skills), default=0)
    for skill in found.skills.values():
        marked = f" (cannot be called here: {skill.unavailable})" if skill.unavailable else ""
        sys.stdout.write(one_line(f"{skill.id:{width}}  {skill.manifest.name}{marked}"))
    _complain(found.findings)
    return 0


def _show(words: list[str]) -> int:
    parser = parser_of("show")
    parser.add_argument("id", metavar="ID")
    options = parser.parse_args(words)
    skill = _shelf(options).find(options.id)
    if options.json:
        print_json(skill.to_dict())
        return 0
    sys.stdout.write(_page(skill))
    return 0


def _page(skill: Skill) -> str:
    import json

    from ringfence.authority.limit_names import shown
    from ringfence.interfaces.cli.render import one_line

    manifest = skill.manifest
    rows = {
        "name": manifest.name,
        "what it does": manifest.description,
        "tool": skill.tool,
        "version": manifest.version or "not said",
        "may": ", ".join(str(item) for item in manifest.capabilities) or "nothing",
        "limits": ", ".join(f"{name} {shown(name, value)}" for name, value in manifest.limits.items())
        or "the system's defaults",
        "safety class": str(manifest.safety_class),
        "side effects": ", ".join(sorted(manifest.side_effects)),
        "digest": skill.digest,
    }
    if skill.unavailable:
        rows["cannot be called here"] = skill.unavailable
    page = "".join(one_line(f"{name:21} {value}") for name, value in rows.items())
    for side, schema in (("inputs", manifest.input_schema), ("outputs", manifest.output_schema)):
        page += f"{side}\n{json.dumps(schema, indent=2)}\n"
    return page


def _validate(words: list[str]) -> int:
    parser = parser_of("validate")
    parser.add_argument("directories", nargs="*", metavar="DIR")
    options = parser.parse_args(words)
    from ringfence.authority.finding import errors
    from ringfence.skills.shelf import MANIFEST, Shelf

    # as they were typed, where that ends with a name: the manifest has to have the same one
    named = [Path(name) if Path(name).name not in ("", "..") else Path(name).resolve() for name in options.directories]
    alone = [path for path in named if (path / MANIFEST).exists()]
    shelves = [path for path in named if path not in alone]
    findings: list[Finding] = []
    sound: list[str] = []
    for path in alone:
        skill, found = Shelf((path.parent,), shipped=False).look_at(path.name)
        findings += found
        sound += [skill.id] if skill is not None else []
    if shelves or not named:
        shelved = (Shelf(tuple(shelves), shipped=False) if named else _shelf(options)).read()
        findings += shelved.findings
        sound += shelved.skills
    if options.json:
        print_json({"valid": sound, "findings": [finding.to_json() for finding in findings]})
    else:
        from ringfence.interfaces.cli.render import one_line

        _complain(findings)
        sys.stdout.writelines(one_line(f"{name}: valid") for name in sound)
    return 2 if errors(findings) else 0


def _new(words: list[str]) -> int:
    parser = parser_of("new")
    parser.add_argument("id", metavar="ID")
    options = parser.parse_args(words)
    if len(options.skills) > 1:
        raise UsageError("a skill is made in one directory", fix="give --skills once")
    from ringfence.interfaces.cli.render import one_line
    from ringfence.skills.shelf import make
    from ringfence.workspaces.home import default_home

    home = Path(options.home) if options.home is not None else default_home()
    made = make(options.id, Path(options.skills[0]) if options.skills else home / "skills")
    if options.json:
        print_json({"id": options.id, "directory": str(made)})
    else:
        sys.stdout.write(one_line(f"made {made}; 'ringfence skill validate {made}' checks it"))
    return 0


def _complain(findings: Sequence[Any]) -> None:
    from ringfence.interfaces.cli.render import one_line

    sys.stderr.writelines(one_line(str(finding)) for finding in findings)


_ACTIONS = {"list": _list, "show": _show, "validate": _validate, "new": _new}
