"""`ringfence workspace`: the files of a project and their history, each action one operation like an agent's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.authority.caller import LOCAL
from ringfence.interfaces.cli.evidence_desk import say, shown_time
from ringfence.interfaces.cli.options import StrictParser
from ringfence.workspaces.home import default_home

if TYPE_CHECKING:
    import argparse

    from ringfence.managed_workspace import ManagedWorkspace

_ACTIONS = (
    *("ls", "diff", "snapshot", "snapshots", "restore", "reset", "delete", "pending", "commit", "discard"),
    *("checkout", "repositories"),
)
_OF_A_SNAPSHOT = ("restore", "delete")
_OF_A_PROPOSAL = ("commit", "discard")


def workspace_command(words: Sequence[str]) -> int:
    """Carry out `ringfence workspace …` and return the exit code."""
    options = _parsed(words)
    home = Path(options.home) if options.home is not None else default_home()
    if options.project is None:
        from ringfence.workspaces.projects import project_names

        if options.action == "repositories":
            from ringfence.workspaces.registered import repositories

            # who calls is the operator, who is told what is wrong with any of them
            shown: dict[str, Any] = {"repositories": [each.name for each in repositories(home) if each.is_for(LOCAL)]}
        else:
            shown = {"projects": project_names(home)}
    else:
        from ringfence.workspaces.projects import require_project

        if options.action != "checkout":
            require_project(home, options.project)  # nothing is made by asking for it
        shown = asyncio.run(_performed(options, home))
    if options.json:
        import json

        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        for line in _lines(options.action, shown):
            say(line)
    sys.stdout.flush()
    return 0


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = StrictParser(prog="ringfence workspace")
    parser.add_argument("action", choices=_ACTIONS)
    parser.add_argument("project", nargs="?")
    parser.add_argument("what", nargs="?")
    parser.add_argument("--since")
    parser.add_argument("--label")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--home")
    parser.add_argument("--policy")
    parser.add_argument("--role")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    action = options.action
    if options.project is not None and action == "repositories":
        parser.error("repositories takes nothing after it")
    if options.project is None and action not in ("ls", "repositories"):
        parser.error(f"{action} needs a project; 'ringfence workspace ls' names them")
    if options.what is None and action in _OF_A_SNAPSHOT:
        parser.error(f"{action} needs a snapshot; 'ringfence workspace snapshots {options.project}' names them")
    if options.what is None and action == "checkout":
        parser.error("checkout needs a repository; 'ringfence workspace repositories' names them")
    if options.what is None and action in _OF_A_PROPOSAL:
        parser.error(f"{action} needs an execution; 'ringfence workspace pending {options.project}' names them")
    if options.what is not None and action not in (*_OF_A_SNAPSHOT, *_OF_A_PROPOSAL, "ls", "checkout"):
        parser.error(f"{action} takes a project, and nothing after it")
    of_one = (("since", ("diff",)), ("label", ("snapshot",)), ("keep", ("restore", "reset")), ("force", ("commit",)))
    for name, its in of_one:
        if getattr(options, name) and action not in its:
            parser.error(f"--{name} is for {' and '.join(its)}")
    return options


async def _performed(options: argparse.Namespace, home: Path) -> dict[str, Any]:
    from ringfence.facade import SandboxManager

    async with SandboxManager(
        options.project, home=home, policy_file=options.policy, role=options.role, pool_size=0
    ) as manager:
        if options.action in ("pending", *_OF_A_PROPOSAL):
            from ringfence.interfaces.cli.pending import decide

            return await decide(manager, options.action, options.what, force=options.force)
        return await _ACTS[options.action](manager.workspace, options)


async def _list(files: ManagedWorkspace, options: argparse.Namespace) -> dict[str, Any]:
    return {"entries": await files.list(options.what or "")}


async def _snapshots(files: ManagedWorkspace, _: argparse.Namespace) -> dict[str, Any]:
    return {"snapshots": await files.snapshots()}


_ACTS: dict[str, Callable[[ManagedWorkspace, argparse.Namespace], Awaitable[dict[str, Any]]]] = {
    "ls": _list,
    "diff": lambda files, options: files.diff(options.since),
    "snapshot": lambda files, options: files.snapshot(options.label or ""),
    "snapshots": _snapshots,
    "restore": lambda files, options: files.restore(options.what, snapshot_before=options.keep),
    "reset": lambda files, options: files.reset(snapshot_before=options.keep),
    "delete": lambda files, options: files.delete_snapshot(options.what),
    "checkout": lambda files, options: files.checkout(options.what),
}


def _lines(action: str, shown: dict[str, Any]) -> Iterator[str]:
    match action:
        case "ls" if "projects" in shown:
            yield from shown["projects"]
        case "repositories":
            yield from shown["repositories"]
        case "checkout":
            yield f"{shown['repository']}: {shown['files']:,} files, {shown['bytes']:,} bytes" + (
                f"; {shown['left_out'] + shown['skipped']} entries left out"
                if shown["left_out"] + shown["skipped"]
                else ""
            )
        case "ls":
            for entry in shown["entries"]:
                yield f"{entry['kind']:<9}  {entry['size']:>12,}  {entry['name']}"
        case "diff":
            yield from _told(shown)
        case "snapshots":
            for info in shown["snapshots"]:
                yield _snapshot(info)
        case "snapshot":
            yield _snapshot(shown)
        case "pending" | "commit" | "discard":
            from ringfence.interfaces.cli.pending import decided

            yield from decided(action, shown)
        case "delete":
            yield f"{shown['snapshot_id']} is gone; {shown['freed_bytes']:,} bytes were given back"
        case _:
            kept = f"; what was there is kept as {shown['snapshot_before']}" if "snapshot_before" in shown else ""
            done = "the work directory is empty" if action == "reset" else f"restored {shown['snapshot_id']}"
            yield done + kept


def _snapshot(info: dict[str, Any]) -> str:
    sizes = f"{info['files']:,} files, {info['bytes']:,} bytes, {info['added_bytes']:,} added"
    return f"{info['snapshot_id']}  {shown_time(info['created_at_ms'])}  {sizes}  {info['label']}".rstrip()


def _told(shown: dict[str, Any]) -> Iterator[str]:
    marks = {"added": "A", "modified": "M", "deleted": "D"}
    for change in shown["changes"]:
        left_out = change.get("text", "shown")
        yield f"{marks[change['change']]} {change['path']}" + ("" if left_out in ("", "shown") else f"  ({left_out})")
    if not shown["complete"]:
        yield "and more, which are not listed"
    yield from (shown["patch"] or "").split("\n")[:-1]
