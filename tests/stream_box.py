"""A container for the byte-stream worker without any engine: bubblewrap gives it a pid 1 and three streams."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ringfence.capability.limits import Limits
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux import observe
from ringfence.isolation.stream.boot import COMMAND
from ringfence.isolation.stream.host import StreamWorker
from ringfence.isolation.stream.line import Line
from ringfence.isolation.stream.parking import Hello, park
from ringfence.outcome import Layers, SandboxType
from ringfence.ports import WorkerSpec
from ringfence.runtimes.node import BOX_DIRECTORY, find_node
from ringfence.workspaces.session import SessionWorkspace

UNPRIVILEGED = 0x7246_FFFD  # as whom the box is built: root's own id in it would be the host's
_numbers = itertools.count()


def argv(spec: WorkerSpec, inputs: Path | None, command: Sequence[str], name: str, usr: str = "/usr") -> list[str]:
    """Return the command line of a box as a container engine would build it, with `usr` as the /usr of its image."""
    size = ["--size", str(spec.disk_bytes)]
    places = ("/workspace/work", "/workspace/artifacts", "/home/sandbox", "/tmp", "/dev/shm")
    tmpfs = [word for place in places for word in (*size, "--tmpfs", place)]
    shown = ["--dir", "/workspace/inputs"] if inputs is None else ["--ro-bind", str(inputs), "/workspace/inputs"]
    if spec.packages is not None:
        shown += ["--ro-bind", spec.packages, "/opt/ringfence/packages"]
    node = find_node()
    binary = "/usr/bin/node"
    if node is not None and node.needs_mount:
        shown += ["--ro-bind", str(node.root), str(BOX_DIRECTORY)]
        binary = str(node.box_path)
    links = {"/bin": "usr/bin", "/lib": "usr/lib", "/lib64": "usr/lib64", "/sbin": "usr/sbin", "/var/tmp": "/tmp"}
    links |= {"/output": "/workspace/artifacts", "/image/python": "/usr/bin/python3", "/image/node": binary}
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--as-pid-1", "--new-session"),
        *("--die-with-parent", "--clearenv", "--setenv", "PATH", "/image:/usr/local/bin:/usr/bin:/bin"),
        *("--hostname", name),
        *("--ro-bind", usr, "/usr", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *(word for where, says in links.items() for word in ("--symlink", says, where)),
        *("--proc", "/proc", "--dev", "/dev"),
        *tmpfs,
        *shown,
        *("--cap-drop", "ALL", "--"),
        *command,
    ]


class Box:
    """One started container."""

    def __init__(
        self,
        spec: WorkerSpec,
        inputs: Path | None = None,
        *,
        command: Sequence[str] = COMMAND,
        name: str = "rf-test",
        usr: str = "/usr",
        wrap: Callable[[list[str]], list[str]] = list,
    ) -> None:
        who: dict[str, Any] = {}
        if os.geteuid() == 0:
            who = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": []}
        # the kernel counts per user, and an ordinary one runs more than this box
        most = spec.pids + 2 + (0 if who else tasks_of_this_user())
        self.process = subprocess.Popen(
            wrap(argv(spec, inputs, command, name, usr)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (most, most)),
            **who,
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


def tasks_of_this_user() -> int:
    """Count the processes and threads that the kernel counts against this user."""
    tasks = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.geteuid():
                tasks += len(os.listdir(process / "task"))
    return tasks


def child_of(pid: int) -> int:
    """Return the first child of a process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def started(
    spec: WorkerSpec | None = None,
    *,
    inputs: Path | None = None,
    session: SessionWorkspace | None = None,
    look: Callable[[Hello], None] = lambda _: None,
    limits: Limits | None = None,
    died_of: str | None = None,
    on_discard: Callable[[], None] = lambda: None,
    **box: Any,
) -> StreamWorker:
    """Return a parked worker in a box of its own."""
    spec = spec or WorkerSpec()
    name = f"rf-{next(_numbers)}"
    container = Box(spec, inputs, name=name, **box)
    pids = [-1, -1]

    def seen(hello: Hello) -> Layers:
        look(hello)
        pids[0] = child_of(container.process.pid)
        pids[1] = child_of(pids[0])
        status = observe.look(pids[1])
        observe.require_sealed(status, observe.own_namespaces(), filters=2)
        return Layers(
            namespaces=observe.NAMESPACES,
            capabilities_empty=True,
            no_new_privs=True,
            seccomp_filters=int(status.status["Seccomp_filters"]),
            landlock_abi=hello.landlock_abi,
            host_uid=int(status.status["Uid"].split("\t")[0]),
            memory_limit="sampled",
            notes=hello.notes,
        )

    def gone() -> None:
        container.kill()
        on_discard()

    try:
        worker = park(
            container.line(died_of),
            spec,
            sandbox_id=name,
            backend="bwrap",
            sandbox_type=SandboxType.BWRAP,
            limits=limits or Limits(),
            inputs=inputs,
            session=session,
            observe=seen,
            on_discard=gone,
        )
    except BaseException:
        container.kill()
        on_discard()
        raise
    worker.init_pid, worker.worker_pid = pids
    return worker


class BoxBackend:
    """Implements `ports.Backend` with such boxes, so that what judges every backend judges them."""

    name = "bwrap"
    fixes_limits = True
    shares_memory = False

    def __init__(self, home: Path) -> None:
        self._home = home

    def start(self, spec: WorkerSpec) -> StreamWorker:
        """Start a box with a directory for its inputs, and a session's files if it is of one."""
        if spec.packages is not None and not Path(spec.packages).is_dir():
            raise IsolationUnavailable(f"{spec.packages} is not there")
        inputs = tempfile.TemporaryDirectory(prefix="ringfence-inputs-")
        Path(inputs.name).chmod(0o755)
        session = None
        if spec.session_id is not None:
            session = SessionWorkspace.create(self._home, spec.session_id, tenant=spec.tenant)
        return started(spec, inputs=Path(inputs.name), session=session, on_discard=inputs.cleanup)

    def tidy(self) -> bool:
        """Nothing is ever left."""
        return True

    def close(self) -> None:
        """Nothing to close."""
