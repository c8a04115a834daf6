"""AIO's own Python client, which `tools/aio-sdk` installs: driven unchanged, in an environment of its own."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
INSTALLED = ROOT / ".venv" / "aio-sdk"
PINS = ROOT / "tests" / "e2e" / "aio_sdk"


@cache
def missing() -> str | None:
    """Say why the client cannot be run here, or None if it can."""
    got = INSTALLED / "installed.txt"
    if not got.is_file():
        return "the AIO client is not installed; fix: tools/aio-sdk"
    same = got.read_bytes() == (PINS / "requirements.txt").read_bytes()
    return None if same else "the AIO client is of another version; fix: tools/aio-sdk"


class Raised(Exception):
    """The client raised; `kind` is the name of its exception's class."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(str(told))
        self.kind: str = told["kind"]
        self.status: int | None = told["status"]
        self.body: Any = told["body"]


class Client:
    """One client of a service, synchronous or not: `client("bash.exec", command="ls")` gives what the call returned."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, name: str, *words: str, **arguments: Any) -> Any:
        asked = {"call": name, "words": words, "arguments": {key: _sent(value) for key, value in arguments.items()}}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the client is gone"
        told = json.loads(line)
        if "raised" in told:
            raise Raised(told["raised"])
        return base64.b64decode(told["bytes"]) if "bytes" in told else told["returned"]


@contextmanager
def connected(url: str, *, flavour: str = "sync", query: str = "", **headers: str) -> Iterator[Client]:
    """Have a client for as long as the block takes; `query` is the key as a parameter of each request."""
    told = json.dumps({"url": url, "headers": headers, "flavour": flavour, "query": query})
    process = subprocess.Popen(
        [str(INSTALLED / "bin" / "python"), "-I", str(PINS / "driver.py"), told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Client(process)
    finally:
        process.communicate(timeout=60)


def _sent(value: Any) -> Any:
    """Return a value that JSON has; a file is a name and its bytes."""
    if isinstance(value, tuple):
        name, content = value
        return {"file": name, "content": base64.b64encode(content).decode()}
    return value
