"""Where AIO instances come from: a command that serves one for as long as it runs, such as `docker run`."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Final, Protocol

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Unavailable

_PORT: Final = "{port}"
_PATIENCE: Final = 20.0
_MOST_SAID: Final = 2000
# Stands between us and the command, and ends it when its input does: when the pool says so, or is killed itself.
_KEEPER: Final = """
import os, select, signal, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
pidfd = os.pidfd_open(child.pid)
if pidfd not in select.select([0, pidfd], [], [])[0]:
    os.killpg(child.pid, signal.SIGTERM)
    select.select([pidfd], [], [], 10)
try:
    os.killpg(child.pid, signal.SIGKILL)
except ProcessLookupError:
    pass
child.wait()
"""


class Instance(Protocol):
    """One service that was started for us."""

    @property
    def base_url(self) -> str:
        """Where it will answer."""
        ...

    def is_running(self) -> bool:
        """Whether there is any sense in waiting for it."""
        ...

    def last_words(self) -> str:
        """Return what it said of itself, for whoever asks why it does not answer."""
        ...

    def destroy(self) -> None:
        """End it and everything in it; safe to call again."""
        ...


class Starter(Protocol):
    """Makes instances that nobody has used before."""

    def __call__(self) -> Instance:
        """Start one; it need not answer yet."""
        ...


class CommandStarter:
    """Implements `Starter` by running a command in which `{port}` stands for the port that the instance is to serve.

    `CommandStarter(["docker", "run", "--rm", "--init", "-p", "127.0.0.1:{port}:8080", IMAGE])`: the command stays as
    long as its instance does, and ends it on SIGTERM.
    """

    def __init__(self, command: Sequence[str]) -> None:
        """Start nothing yet.

        Raises:
            InvalidRequest: The command does not say where its port goes.
        """
        if isinstance(command, str) or not any(_PORT in word for word in command):
            raise InvalidRequest(
                "the command that starts an AIO instance must be a list of words with {port} in one of them",
                reason="invalid_value",
                fix='write it as ["docker", "run", "--rm", "-p", "127.0.0.1:{port}:8080", IMAGE]',
            )
        self._command = tuple(command)

    def __call__(self) -> Instance:
        """Start one.

        Raises:
            Unavailable: The command cannot be run.
        """
        # another may take it before the command does: then that one does not answer as an instance, and a new is made
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        words = [word.replace(_PORT, port) for word in self._command]
        said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the instance
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )
        except OSError as error:
            said.close()
            raise Unavailable(f"no AIO instance can be started: {error.strerror}", reason="unavailable") from error
        return _Started(f"http://127.0.0.1:{port}", process, said)


@dataclass(slots=True)
class _Started:
    """Implements `Instance` for a command that runs."""

    base_url: str
    process: subprocess.Popen[bytes]
    said: IO[bytes]

    def is_running(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        self.said.seek(0)
        return self.said.read(_MOST_SAID).decode("utf-8", "replace")

    def destroy(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.said.close()
