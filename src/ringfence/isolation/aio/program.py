"""How one program is started in an AIO service: which files it needs there, and the command line that runs them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import RuntimeMissing
from ringfence.operation import Language
from ringfence.ports import Job

_STARTED: Final = {
    Language.PYTHON: ("main.py", ("python3", "-X", "utf8"), "-c"),
    Language.BASH: ("main.sh", ("bash",), None),
    Language.JAVASCRIPT: ("main.js", ("node",), "-e"),
}
"""What a program is called as a file, what runs it, and the option by which it takes it as a word."""
_MOST_INLINE: Final = 32 * 1024
"""A longer program is a file: the kernel takes words of 128 KiB, of which quoting may need half."""


WORKSPACE: Final = "/workspace"
"""Where a run's files lie in every other box; here only where whoever set the service up left it empty for us."""
_DIRECTORIES: Final = ("inputs", "work", "artifacts", "job")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run has its files in a service."""

    root: str

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


def require_runtime(language: Language) -> None:
    """Refuse a language that no AIO service runs.

    Raises:
        RuntimeMissing: It is one.
    """
    if language not in _STARTED:
        raise RuntimeMissing(f"an AIO service does not run {language}", fix="run it natively, or compile it first")


def place_in(home: str, run: str) -> Place:
    """Return where one run lies in a service with this home directory."""
    return Place(f"{home.rstrip('/')}/.ringfence/{run}")


def furnishing(place: Place) -> str:
    """Return the command line that makes the directories of a run: in `/workspace` if it can, else in `place`.

    It exits with 0 for the one and with 1 for the other. `job` is made first and alone, so that of two runs that come
    at once only one has `/workspace`.
    """
    shared = " ".join(f"{WORKSPACE}/{name}" for name in _DIRECTORIES[:-1])
    own = " ".join(shlex.quote(place.of(name)) for name in _DIRECTORIES)
    return (
        f"umask 077; if mkdir {WORKSPACE}/job 2>/dev/null; then mkdir {shared} 2>/dev/null && exit 0; "
        f"rmdir {WORKSPACE}/job; fi; mkdir -p {own} && exit 1; exit 2"
    )


def unpacking(place: Place) -> str:
    """Return the command line that puts what was sent where it belongs."""
    root = shlex.quote(place.root)
    return f"cd {root} && tar -xpf job/there.tar && rm -f job/there.tar && chmod -R a-w inputs"


def clearing(place: Place) -> str:
    """Return the command line that removes the directories of a run; `job` last, which keeps others out."""
    own = [shlex.quote(place.of(name)) for name in _DIRECTORIES]
    return f"chmod -R u+w {' '.join(own)}; rm -rf {' '.join(own[:-1])}; rm -rf {own[-1]}"


def program(job: Job, place: Place) -> Program:
    """Return what has to be put and started in a service for this code to run.

    The limits are set by the shell that becomes the program. Whoever has another user's rights there, or root's, can
    lift them: they stop mistakes, not attackers.

    Raises:
        RuntimeMissing: No AIO service runs the language.
    """
    require_runtime(job.language)
    name, argv, option = _STARTED[job.language]
    limits, own, work = job.limits, place.of("job"), place.of("work")
    bounds = {"t": int(limits.cpu_seconds), "n": limits.open_files, "f": limits.file_bytes // 1024}
    one_by_one = "; ".join(f"ulimit -{letter} {max(1, bound)}" for letter, bound in bounds.items())
    given, files = dict(job.env), {"stdin": job.stdin}
    if option is not None and len(job.code) <= _MOST_INLINE and job.code.isascii():
        # as in every other box: no file of ours in tracebacks, arguments or the path that modules are found by
        source: tuple[str, ...] = (option, job.code, *(("--",) if option == "-e" and job.args else ()))
    else:
        source, files[name] = (f"{own}/{name}",), job.code.encode("utf-8", "surrogateescape")
        if job.language is Language.PYTHON:
            given["PYTHONPATH"] = ":".join(filter(None, (work, given.get("PYTHONPATH"))))
    words = " ".join(shlex.quote(word) for word in (*argv, *source, *job.args))
    return Program(
        files=files,
        command=f"{{ {one_by_one}; }} 2>/dev/null; exec {words} <{shlex.quote(f'{own}/stdin')}",
        env=given,
        directory=work if job.cwd is None else _inside(job.cwd, place),
    )


def _inside(cwd: str, place: Place) -> str:
    """Return where a directory of the workspace lies in the service."""
    relative = cwd.removeprefix("/workspace/") if cwd.startswith("/workspace/") else f"work/{cwd}"
    return place.of(relative)
