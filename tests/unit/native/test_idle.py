"""The program that is pid 1 of a box does nothing, and does that reliably."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.isolation.native.idle import program


@pytest.fixture
def idle(tmp_path: Path) -> Path:
    path = tmp_path / "init"
    path.write_bytes(program(os.uname().machine))
    path.chmod(0o755)
    return path


def test_it_ignores_its_children_and_sleeps_until_it_is_killed(idle: Path) -> None:
    with subprocess.Popen([idle], env={}, stdin=subprocess.DEVNULL) as process:
        status = settled(process.pid)
        assert int(status["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1
        assert int(status["SigCgt"], 16) == 0
        assert int(status["VmRSS"].split()[0]) <= 64
        process.send_signal(signal.SIGCONT)
        assert settled(process.pid)["State"].startswith("S")
        process.kill()
        assert process.wait() == -signal.SIGKILL


def settled(pid: int) -> dict[str, str]:
    """Return the status of a process once it sleeps."""
    deadline = time.monotonic() + 10
    while True:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if status["State"].startswith("S") and status["Name"] == "init":
            return status
        assert time.monotonic() < deadline, status["State"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_it_is_one_segment_that_nobody_can_write(machine: str) -> None:
    image = program(machine)
    assert image[:4] == b"\x7fELF"
    assert int.from_bytes(image[56:58], "little") == 1  # program headers
    assert int.from_bytes(image[68:72], "little") == 5  # read and execute
    assert int.from_bytes(image[96:104], "little") == len(image)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(IsolationUnavailable, match="mips"):
        program("mips")
