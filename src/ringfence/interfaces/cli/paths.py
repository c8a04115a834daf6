"""`ringfence paths`: what the workspace is called on each side of a Windows and WSL machine, and to docker."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringfence.dataclass import replace
from ringfence.interfaces.cli.options import StrictParser
from ringfence.paths.adapter import AdaptedPath, Roots, Side, adapt, project_paths
from ringfence.paths.machine import ask_wslpath, this_side


def paths_command(words: Sequence[str]) -> int:
    """Carry out `ringfence paths` and return the exit code."""
    parser = StrictParser(prog="ringfence paths")
    parser.add_argument("--env", choices=("auto", "windows", "wsl"), default="auto")
    parser.add_argument("--root-win")
    parser.add_argument("--root-wsl")
    parser.add_argument("--project")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    side = this_side() if options.env == "auto" else Side(options.env)
    root = adapt(side, _roots(side, options.home, options.root_win, options.root_wsl), ask_wslpath)
    shown = {"root": root} | (project_paths(root, options.project) if options.project else {})
    answer = {name: _entry(path) for name, path in shown.items()}
    if options.json:
        import json

        sys.stdout.write(json.dumps({"env": str(side), "paths": answer}) + "\n")
    else:
        sys.stdout.write(f"environment: {side}\n")
        for name, entry in answer.items():
            sys.stdout.write(f"{name}:\n" + "".join(f"  {key}: {value}\n" for key, value in entry.items()))
    sys.stdout.flush()
    return 0


def _roots(side: Side, home: Path | None, win: str | None, wsl: str | None) -> Roots:
    """Return the roots as the words, the environment and the configuration say, in that order."""
    from ringfence.service.settings import read_settings
    from ringfence.service.surroundings import roots_of
    from ringfence.wiring import default_home

    where = home or default_home()
    said = roots_of(read_settings(where / "config.toml", must_exist=False, environment=os.environ))
    said = Roots(win or said.win, wsl or said.wsl, said.linux)
    # where nobody said anything, the projects of this machine are in the home
    silent = said.linux is None if side is Side.LINUX else said == Roots() and side is this_side() is Side.WSL
    return replace(said, linux=str(where.absolute())) if silent else said


def _entry(path: AdaptedPath) -> dict[str, Any]:
    return {
        "host_path_native": path.host_path_native,
        "docker_mount_path": path.docker_mount_path,
        "writable": _writable(path),
    }


def _writable(path: AdaptedPath) -> str:
    """Say whether files can be made there; only of this machine's own side can anybody tell."""
    if path.side is not this_side():
        return f"not looked at: this is {this_side()}"
    from ringfence.service.surroundings import is_writable

    problem = is_writable(Path(path.host_path_native))
    return "yes" if problem is None else f"no: {problem}"
