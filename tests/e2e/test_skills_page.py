"""docs/skills.md shows commands and what they print: they print that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.command_line import PATIENCE_SECONDS, surroundings

from ringfence import SandboxManager
from ringfence.skills.shelf import make

pytestmark = pytest.mark.needs("native")
PAGE = (Path(__file__).parents[2] / "docs" / "skills.md").read_text()


def shown() -> list[tuple[str, str]]:
    """Return every command of the page with what the page says it prints."""
    sessions = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
    return [
        (command, output) for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", sessions, re.MULTILINE)
    ]


@pytest.mark.timeout(120)
def test_every_command_of_the_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "ringfence"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ringfence "$@"\n')
    command.chmod(0o755)
    env = surroundings(tmp_path / "home")
    env["PATH"] = f"{command.parent}:{env['PATH']}"
    commands = shown()
    assert len(commands) > 10
    for line, output in commands:
        done = subprocess.run(
            ["/bin/sh", "-c", line],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.stdout == output, line


async def test_the_program_of_the_page_gives_what_the_page_says(tmp_path: Path) -> None:
    make("text.count", tmp_path / "skills")
    async with SandboxManager(
        "project-1", home=tmp_path / "home", skills=[tmp_path / "skills"], pool_size=0
    ) as manager:
        outcome = await manager.invoke("text.count", {"text": "to be"})
    assert (outcome.outputs, outcome.success) == ({"words": 2}, True)
