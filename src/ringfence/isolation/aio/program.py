"""How one program is started in an AIO service: which files it needs there, and the command line that runs them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ringfence.capability.limits import Limits
from ringfence.errors import RuntimeMissing
from ringfence.operation import Language

_STARTED: Final = {
    Language.PYTHON: ("main.py", ("python3", "-X", "utf8")),
    Language.BASH: ("main.sh", ("bash",)),
    Language.JAVASCRIPT: ("main.js", ("node",)),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run has its files in a service; `is_workspace` says that `/workspace` leads there."""

    root: str
    is_workspace: bool = False

    def of(self, name: str) -> str:
        """Return one of the directories `inputs`, `work`, `artifacts` and `job`."""
        return f"{self.root}/{name}"


@dataclass(frozen=True, slots=True)
class Program:
    """What runs, by whose side of the wire it lies on."""

    files: Mapping[str, bytes]
    """What lies in `job`."""
    command: str
    env: Mapping[str, str]
    directory: str


def place_in(home: str) -> Place:
    """Return where runs lie in a service with this home directory."""
    return Place(f"{home.rstrip('/')}/.ringfence")


def furnishing(place: Place) -> str:
    """Return the command line that empties and makes the directories of a run.

    It exits with 0 where `/workspace` leads to them; with 1 where somebody else has that name, or nobody may make it.
    """
    root = shlex.quote(place.root)
    return (
        f"umask 077; rm -rf {root}; mkdir -p {root}/inputs {root}/work {root}/artifacts {root}/job || exit 2; "
        f"[ -e /workspace ] || ln -s {root} /workspace 2>/dev/null; [ /workspace -ef {root} ]"
    )


def program(
    language: Language,
    code: str,
    args: tuple[str, ...],
    env: Mapping[str, str],
    stdin: bytes,
    cwd: str | None,
    limits: Limits,
    place: Place,
) -> Program:
    """Return what has to be put and started in a service for this code to run.

    The limits are set by the shell that becomes the program. Whoever has another user's rights there, or root's, can
    lift them: they stop mistakes, not attackers.

    Raises:
        RuntimeMissing: No AIO service runs the language.
    """
    if language not in _STARTED:
        raise RuntimeMissing(f"an AIO service does not run {language}", fix="run it natively, or compile it first")
    name, argv = _STARTED[language]
    job, work = place.of("job"), place.of("work")
    words = " ".join(shlex.quote(word) for word in (*argv, f"{job}/{name}", *args))
    bounds = f"-t {max(1, int(limits.cpu_seconds))} -n {limits.open_files} -f {max(1, limits.file_bytes // 1024)}"
    one_by_one = "; ".join(f"ulimit {bound.strip()}" for bound in bounds.replace(" -", "\n-").split("\n"))
    given = dict(env)
    if language is Language.PYTHON:
        # what lies beside a program is imported from where it runs, not from where its text was put
        given["PYTHONPATH"] = ":".join(filter(None, (work, given.get("PYTHONPATH"))))
    return Program(
        files={name: code.encode("utf-8", "surrogateescape"), "stdin": stdin},
        command=f"{{ {one_by_one}; }} 2>/dev/null; exec {words} <{shlex.quote(f'{job}/stdin')}",
        env=given,
        directory=work if cwd is None else _inside(cwd, place),
    )


def _inside(cwd: str, place: Place) -> str:
    """Return where a directory of the workspace lies in the service."""
    relative = cwd.removeprefix("/workspace/") if cwd.startswith("/workspace/") else f"work/{cwd}"
    return place.of(relative)
