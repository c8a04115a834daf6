"""The command as a person or a script has it: a process of its own, over a home that a test names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "ringfence"]
PATIENCE_SECONDS = 60


def surroundings(home: Path | None, **more: str) -> dict[str, str]:
    """Return the environment with nothing of ours in it but the home and `more`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RINGFENCE_")}
    return {**env, **({} if home is None else {"RINGFENCE_HOME": str(home)}), **more}


def ringfence(home: Path | None, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with `more` in its environment."""
    return subprocess.run(
        [*COMMAND, *words],
        env=surroundings(home, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def said(home: Path | None, *words: str, code: int = 0, **more: str) -> str:
    """Return what the command printed."""
    done = ringfence(home, *words, **more)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def told(home: Path | None, command: str, *words: str, code: int = 0, **more: str) -> dict[str, Any]:
    """Return the one JSON object that the command printed, in one line."""
    output = said(home, command, *_with_json(words), code=code, **more)
    assert output.count("\n") == 1
    answer: dict[str, Any] = json.loads(output)
    return answer


def _with_json(words: tuple[str, ...]) -> list[str]:
    """Put `--json` before the program's own words."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], "--json", *words[at:]]
