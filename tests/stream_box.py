"""A container for the byte-stream worker without any engine: bubblewrap gives it a pid 1 and three streams."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringfence.capability.limits import Limits
from ringfence.isolation.stream.boot import COMMAND
from ringfence.isolation.stream.host import StreamWorker
from ringfence.isolation.stream.line import Line
from ringfence.isolation.stream.parking import Hello, park
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import WorkerSpec
from ringfence.workspaces.session import SessionWorkspace


def argv(spec: WorkerSpec, inputs: Path | None, command: Sequence[str]) -> list[str]:
    """Return the command line of a box as a container engine would build it."""
    size = ["--size", str(spec.disk_bytes)]
    tmpfs = [
        word
        for place in ("/workspace/work", "/workspace/artifacts", "/home/sandbox", "/tmp", "/dev/shm")
        for word in (*size, "--tmpfs", place)
    ]
    shown = ["--dir", "/workspace/inputs"] if inputs is None else ["--ro-bind", str(inputs), "/workspace/inputs"]
    links = [
        word
        for says, where in (
            ("usr/bin", "/bin"),
            ("usr/lib", "/lib"),
            ("usr/lib64", "/lib64"),
            ("usr/sbin", "/sbin"),
            ("/tmp", "/var/tmp"),
            ("/workspace/artifacts", "/output"),
        )
        for word in ("--symlink", says, where)
    ]
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--as-pid-1", "--new-session"),
        *("--die-with-parent", "--clearenv", "--setenv", "PATH", "/usr/local/bin:/usr/bin:/bin"),
        *("--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *links,
        *("--proc", "/proc", "--dev", "/dev"),
        *tmpfs,
        *shown,
        *("--cap-drop", "ALL", "--"),
        *command,
    ]


class Box:
    """One started container."""

    def __init__(
        self, spec: WorkerSpec, inputs: Path | None = None, *, command: Sequence[str] = COMMAND, python: str = "python3"
    ) -> None:
        words = argv(spec, inputs, (python, *command[1:]) if command is COMMAND else command)
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=True
        )

    def line(self, died_of: str | None = None) -> Line:
        """Return its streams, as a backend hands them over."""
        fds = []
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            fds.append(os.dup(stream.fileno()))
            stream.close()
        return Line(fds[0], fds[1], fds[2], self.kill, lambda: died_of)

    def kill(self) -> None:
        """End it, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    @property
    def init_pid(self) -> int:
        """The first process inside, as this machine numbers it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])


def started(
    spec: WorkerSpec | None = None,
    *,
    inputs: Path | None = None,
    session: SessionWorkspace | None = None,
    observe: Callable[[Hello], Layers] | None = None,
    limits: Limits | None = None,
    **box: Any,
) -> StreamWorker:
    """Return a parked worker in a box of its own."""
    spec = spec or WorkerSpec()
    container = Box(spec, inputs, **box)
    worker = park(
        container.line(),
        spec,
        sandbox_id="rf-test",
        backend="docker",
        sandbox_type=SandboxType.DOCKER,
        limits=limits or Limits(),
        inputs=inputs,
        session=session,
        observe=observe or (lambda hello: Layers(landlock_abi=hello.landlock_abi, memory_limit="cgroup")),
        on_discard=container.kill,
    )
    worker.init_pid = container.init_pid
    return worker
