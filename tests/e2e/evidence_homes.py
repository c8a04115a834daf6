"""Homes that are lived in: what `ringfence evidence` is asked about, and a hand in the file that it is kept in."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import COMMAND, said, surroundings, told

BASH_ONLY = "policies:\n  tools:\n    code_run:\n      supported_languages: [bash]\n"
PROGRAM = "print(6 * 7); open('/workspace/artifacts/a.txt', 'w').write('kept')"


@pytest.fixture(scope="module")
def lived_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home in which a program succeeded, one failed, one timed out and one was denied, in this order."""
    place = tmp_path_factory.mktemp("evidence")
    home, policy = place / "home", place / "policy.yaml"
    policy.write_text(BASH_ONLY)
    whose = ("--correlate", "task=T-7", "--correlate", "user=ada", "--project", "p1")
    said(home, "run", "-c", PROGRAM, *whose)
    said(home, "run", "-c", "raise SystemExit(7)", "--correlate", "task=T-8", code=1)
    said(home, "run", "-c", "while True: pass", "--timeout", "0.5", code=6)
    said(home, "run", "-c", "print(1)", "--policy", str(policy), code=3)
    return home


@pytest.fixture
def home(lived_in: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may do anything to."""
    return Path(shutil.copytree(lived_in, tmp_path / "home"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return the home of another machine, where nothing ever ran."""
    return tmp_path / "nothing" / "here"


def by_outcome(home: Path, outcome: str) -> dict[str, Any]:
    """Return the one row of a run that came out so."""
    (row,) = told(home, "evidence", "list", "--outcome", outcome)["execs"]
    found: dict[str, Any] = row
    return found


@contextmanager
def under_way(home: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a run that goes on until its process is killed."""
    running = subprocess.Popen(
        [*COMMAND, "run", "-c", "print('here', flush=True)\nimport time; time.sleep(60)"],
        env=surroundings(home, **more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"here\n"
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture
def half_done(home: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Give such a home in which a run goes on, and the process whose run it is."""
    with under_way(home) as running:
        yield home, running


def edit(home: Path, *statements: str, **values: Any) -> None:
    """Change the database of a home as somebody who holds the disk does."""
    with closing(sqlite3.connect(home / "ringfence.db")) as file, file:
        file.execute("PRAGMA ignore_check_constraints=ON")  # who edits a file by hand keeps to no schema
        for statement in statements:
            file.execute(statement, values)
