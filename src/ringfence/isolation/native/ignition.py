"""Starts the launcher's interpreter, which needs some time before it can be told what to be.

It imports next to nothing, so that a command can ignite first and import the rest of Ringfence while the launcher
starts on another core.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from ringfence.isolation.linux import streams

SOURCE = str(Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path.append({source!r}); from ringfence.isolation.native.launcher import main; main({a}, {b})"
_ahead: list[Ignition] = []


class Ignition:
    """A launcher that waits for its configuration: the process, and the host's ends of its two channels."""

    def __init__(self, executable: str) -> None:
        """Exec it with an empty environment and no descriptor but its channels."""
        streams.occupy()
        self.executable = executable
        self.host, launcher_end = streams.pair(socket.SOCK_SEQPACKET)
        self.control, zygote_end = streams.pair(socket.SOCK_SEQPACKET)
        with launcher_end, zygote_end:
            ends = (launcher_end.fileno(), zygote_end.fileno())
            boot = _BOOT.format(source=SOURCE, a=ends[0], b=ends[1])
            self.process = subprocess.Popen(
                [executable, "-I", "-S", "-B", "-X", "utf8", "-c", boot],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=ends,
                cwd="/",
            )

    def put_out(self) -> None:
        """End it, and with it whatever it has become."""
        self.host.close()
        self.control.close()
        self.process.kill()
        self.process.wait()


def ignite_ahead() -> None:
    """Start a launcher that the first zygote of this process will use; call it from a thread that stays."""
    _ahead.append(Ignition(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)))


def take(executable: str) -> Ignition:
    """Return a launcher of `executable`, the one that was started ahead if it fits."""
    while _ahead:
        ready = _ahead.pop()
        if ready.executable == executable:
            return ready
        ready.put_out()
    return Ignition(executable)
