"""The README's examples, run as a reader would run them, and its links, followed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.name != "LICENSE")
PATIENCE_SECONDS = 50


def blocks(language: str) -> list[str]:
    """Return the fenced blocks of one language, top to bottom."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.needs("native")
@pytest.mark.parametrize("program", blocks("python"))
def test_a_python_example_prints_what_the_readme_says(program: str, tmp_path: Path) -> None:
    promised = re.findall(r"print\(.*\)  # (.*)$", program, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=environment(tmp_path),
    )
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == (promised, "", 0)
    assert promised


@pytest.mark.needs("native")
@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.splitlines()[0])
def test_the_command_lines_of_the_readme_run_one_after_the_other(block: str, tmp_path: Path) -> None:
    command = tmp_path / "ringfence"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ringfence "$@"\n')
    command.chmod(0o755)
    (tmp_path / "policy.yaml").write_text(blocks("yaml")[0])
    for line in filter(None, block.splitlines()):
        runs_as_it_stands(line, tmp_path)


def runs_as_it_stands(line: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
        cwd=tmp_path,
        env=environment(tmp_path) | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    refused = re.search(r"# (\S+), exit code (\d+)$", line)
    if refused:
        assert done.returncode == int(refused[2])
        assert refused[1] in done.stderr
    else:
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout or done.stderr.startswith("ringfence: wrote "), line
        assert not done.stderr or done.stderr.startswith("ringfence: wrote "), done.stderr


def environment(tmp_path: Path) -> dict[str, str]:
    """Give an example a state directory of its own, so that a session of an earlier run is not in it."""
    return {**os.environ, "RINGFENCE_HOME": str(tmp_path / "home")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_between_our_pages_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []
