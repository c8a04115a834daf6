"""A service for tests: the real command in a process of its own, on a free port and on the socket of its home."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ringfence

SOURCE = str(Path(ringfence.__file__).parents[1])


@dataclass
class ServiceProcess:
    """One service, while it runs."""

    home: Path
    url: str
    key: str
    process: subprocess.Popen[str]

    @property
    def socket_url(self) -> str:
        return f"unix:{self.home / 'service.sock'}"

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


def start(home: Path, *words: str, port: int = 0, key: str = "") -> ServiceProcess:
    """Start a service and return when it answers; a home that has keys already does not say them again."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ringfence", "serve", "--port", str(port), *words],
        env={**os.environ, "PYTHONPATH": SOURCE, "RINGFENCE_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    assert "serving" in said, said + process.stderr.read()
    url = said.split()[2]
    if not key:
        process.stderr.readline()
        key = process.stderr.readline().strip()
    return ServiceProcess(home, url, key, process)


def stop(service: ServiceProcess, signum: int = signal.SIGTERM) -> None:
    """End a service, and wait until it is gone."""
    service.process.send_signal(signum)
    service.process.wait(60)
    assert service.process.stderr is not None
    service.process.stderr.close()


@contextmanager
def running(home: Path, *words: str) -> Iterator[ServiceProcess]:
    """Have a service for as long as the block takes."""
    service = start(home, *words)
    try:
        yield service
    finally:
        stop(service)
