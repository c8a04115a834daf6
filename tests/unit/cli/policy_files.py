"""The policies that `ringfence policy` is asked about: those of document 001, the example, and what a test writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.interfaces.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = str(ROOT / "tests/unit/authority/sandbox_policy.yaml")
NETWORK = str(ROOT / "tests/unit/authority/network_policy.yaml")
EXAMPLE = str(ROOT / "examples/sandbox_policy.yaml")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a policy, or another file that a command is given, and return its path."""

    def _write(content: str | bytes | dict[str, Any], name: str = "policy.yaml") -> str:
        path = tmp_path / name
        content = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return _write


class Explain:
    """Runs `policy explain --json` and hands out its rows by name."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, policy: str, *words: str) -> dict[str, Any]:
        assert main(["policy", "explain", "--policy", policy, *words, "--json"]) == 0
        said: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return said | {"by_name": {row["setting"]: row for row in said["rows"]}}


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Explain:
    """Explain what a call may do."""
    return Explain(capsys)
