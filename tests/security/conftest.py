"""How a hostile program is put into a box, and how the same program is run outside one to see that it bites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence.isolation.docker.backend import DOES_NOT_KEEP as DOCKER_DOES_NOT_KEEP
from ringfence.isolation.gvisor.backend import DOES_NOT_KEEP as GVISOR_DOES_NOT_KEEP
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.outcome import ExecutionResult

PRELUDE = """
import ctypes, errno, json, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
CALL = json.loads(sys.argv[1])
given = sys.argv[2:]

def call(name, *arguments):
    '''Make a raw system call and say how it ended.'''
    ctypes.set_errno(0)
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(CALL[name]), *whole)
    return 'done' if result >= 0 else errno.errorcode[ctypes.get_errno()]

def attempt(what, *arguments, **options):
    '''Do something and say how it ended.'''
    try:
        what(*arguments, **options)
    except OSError as error:
        return errno.errorcode.get(error.errno, repr(error))
    except Exception as error:
        return type(error).__name__
    return 'done'

said = {}
"""
EPILOGUE = "\nprint(json.dumps(said))\n"
NUMBERS = json.dumps(dict(machine_named(os.uname().machine).numbers))

Run = Callable[..., ExecutionResult]
Ask = Callable[..., dict[str, Any]]


BUILT_HERE = [
    pytest.param("native", marks=pytest.mark.needs("native")),
    pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
]
"""The boxes whose every part is made by this process and its children."""
FROM_AN_IMAGE = [
    pytest.param("docker", marks=pytest.mark.needs("docker")),
    pytest.param("gvisor", marks=pytest.mark.needs("gvisor")),
]
_NEEDED = {"docker": "docker_engine", "gvisor": "gvisor_image"}


@pytest.fixture(params=[*BUILT_HERE, *FROM_AN_IMAGE])
def backend(request: pytest.FixtureRequest) -> str:
    """Each kind of box in turn."""
    name: str = request.param
    if name in _NEEDED:
        request.getfixturevalue(_NEEDED[name])
    return name


@pytest.fixture(autouse=True)
def only_what_is_promised(request: pytest.FixtureRequest) -> None:
    """Skip a test of what its kind of box says it does not keep; what says nothing keeps everything."""
    if "backend" in request.fixturenames:
        name = request.getfixturevalue("backend")
        for mark in request.node.iter_markers("promise"):
            if mark.args[0] in does_not_keep(name):
                pytest.skip(f"{name} says: {does_not_keep(name)[mark.args[0]]}")


def does_not_keep(backend: str) -> Mapping[str, str]:
    """Return what a kind of box says, in its code, that it does not keep."""
    return {"docker": DOCKER_DOES_NOT_KEEP, "gvisor": GVISOR_DOES_NOT_KEEP}.get(backend, {})


@pytest.fixture
def box(backend: str) -> Run:
    """Run a program in a box of its own, through the public door."""

    def run(program: str, **options: Any) -> ExecutionResult:
        return ringfence.run(program, **{"isolation": backend, "timeout": 20, **options})

    return run


@pytest.fixture
def ask(box: Run) -> Ask:
    """Run a program that fills the dictionary `said`, and return what it said."""

    def question(program: str, *given: str, **options: Any) -> dict[str, Any]:
        result = box(PRELUDE + program + EPILOGUE, args=(NUMBERS, *given), **options)
        assert result.exit_code == 0, result.stderr or result
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    return question


@pytest.fixture
def unboxed() -> Ask:
    """Run the same program as a plain child of the host: what it says there is what a box has to prevent."""

    def question(program: str, *given: str, **options: Any) -> dict[str, Any]:
        python = sys._base_executable  # type: ignore[attr-defined]
        command = [python, "-I", "-c", PRELUDE + program + EPILOGUE, NUMBERS, *given]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, **options)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return question


@pytest.fixture
def application(backend: str, tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Run a whole host application of its own: for what must be there before the first box is built.

    It finds the backend in `backend`, the program's beginning in `PRELUDE`, and answers with a dictionary `answer`.
    """

    def run(text: str) -> dict[str, Any]:
        opening = (
            "import json, os, socket, subprocess, sys\nimport ringfence\n"
            f"backend = {backend!r}\nPRELUDE = {PRELUDE!r}\nEPILOGUE = {EPILOGUE!r}\nNUMBERS = {NUMBERS!r}\n"
        )
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(ringfence.__file__).parents[1]),
            "HOME": str(tmp_path),
            "RINGFENCE_HOME": str(tmp_path / "home"),
        }
        done = subprocess.run(
            [sys.executable, "-c", opening + text + "\nprint(json.dumps(answer))"],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run
