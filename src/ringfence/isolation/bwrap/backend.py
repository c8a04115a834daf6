"""The bubblewrap backend: for machines that let only the distribution's `bwrap` make user namespaces.

Ubuntu since 23.10 takes the capabilities from unprivileged user namespaces and exempts `/usr/bin/bwrap` by its path.
The worker inside is the same, and Landlock and seccomp are applied in it; what bubblewrap cannot do is said in the
notes of every result.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits
from ringfence.errors import InvalidRequest, IsolationUnavailable
from ringfence.isolation.bwrap.argv import SOURCE, bwrap_argv
from ringfence.isolation.linux import channel
from ringfence.isolation.linux.outfit import Outfit
from ringfence.isolation.linux.parked import ParkedWorker
from ringfence.isolation.linux.view import GENERATED
from ringfence.isolation.linux.workshop import Box, HostEnds, InsideEnds, Place, Workshop, open_ends
from ringfence.operation import Language
from ringfence.outcome import SandboxType
from ringfence.ports import WorkerSpec
from ringfence.runtimes.node import NodeCommand
from ringfence.runtimes.python import PYTHON
from ringfence.workspaces.run_directory import RunDirectory

_PACKAGE = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.append({source!r}); from ringfence.isolation.bwrap.inside import main; main({a}, {b})"
_UNPRIVILEGED = 0x7246_FFFE  # who bwrap runs as when we are root: it would map the caller's own id
_NOTES = (
    "built by bubblewrap: the number of files is not limited, only their bytes",
    "built by bubblewrap: /proc shows the kernel's public files, not the processes alone",
)
_TERMINALS_NOTE = (
    "built by bubblewrap: how many terminals a guest opens is limited by the kernel for all guests together"
)


class BwrapBackend:
    """Implements `ports.Backend` with the system's bubblewrap."""

    name = Isolation.BWRAP.value
    fixes_limits = False
    shares_memory = False

    def __init__(
        self,
        outfit: Callable[[WorkerSpec, bool], Outfit],
        node_command: Callable[[Language], NodeCommand],
        *,
        limits: Limits,
    ) -> None:
        """Nothing starts before the first worker is asked for."""
        self._outfit = outfit
        self._node_command = node_command
        self._workshop = Workshop(limits)

    def start(self, spec: WorkerSpec) -> ParkedWorker:
        """Build, seal and observe one worker."""
        bwrap = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
        if bwrap is None:
            raise IsolationUnavailable("bubblewrap is not installed", fix="apt-get install bubblewrap")
        if spec.session_id is not None:
            raise IsolationUnavailable("a session's files need the native backend", fix="see `ringfence doctor`")
        node = None if spec.runtime is Language.PYTHON else self._node_command(spec.runtime)
        outfit = self._outfit(spec, self._workshop.counts_memory())
        if outfit.view.notes():
            raise IsolationUnavailable(
                "bubblewrap cannot keep guests from the sockets in the directories of [workspace.ro_mounts]",
                fix="leave the section out, or see `ringfence doctor` for the native backend",
            )
        if not outfit.landlock_abi:
            raise IsolationUnavailable(
                "under bubblewrap, inputs are kept read-only by Landlock, which this kernel lacks"
            )
        ends, inside = open_ends()
        sandbox_id = f"rf-{secrets.token_hex(6)}"
        try:
            process, init_pid = _launch(bwrap, outfit, spec, sandbox_id, inside)
        except BaseException:
            ends.close()
            raise
        finally:
            inside.close()
        place: Place | None = None
        try:
            place = self._workshop.reserve(sandbox_id)
            box = self._box(spec, place, outfit, node, ends, init_pid)
        except BaseException:
            ends.close()
            _reap(process)
            if place is not None:
                self._workshop.give_up(place)
            raise
        place.shut()
        try:
            return self._workshop.park(box, on_discard=lambda: _reap(process))
        except BaseException:
            _reap(process)
            raise

    def _box(
        self,
        spec: WorkerSpec,
        place: Place,
        outfit: Outfit,
        node: NodeCommand | None,
        ends: HostEnds,
        init_pid: int,
    ) -> Box:
        run: dict[str, Any] = {"open_files": spec.open_files, "file_bytes": spec.file_bytes}
        run["exec"] = None if node is None else node.argv
        # here the init is one of the run's processes, and it, not the zygote, waits for the worker
        run |= {"pids": spec.pids, "own_pids": 1, "anchor": None, "terminal": spec.terminal, "egress": spec.egress}
        answer = _furnish(ends, {**outfit.to_message(source=SOURCE), "spec": run}, place.entrances)
        if "requested" in answer:
            raise InvalidRequest(answer["requested"], reason="preload_failed")
        # the init waits for our word, so its pid is still its own
        pidfd = os.pidfd_open(init_pid)
        try:
            ends.status.send(b"g")
        except OSError:
            os.close(pidfd)
            raise
        owner = None if os.geteuid() else (_UNPRIVILEGED, _UNPRIVILEGED)
        return Box(
            backend=self.name,
            sandbox_type=SandboxType.BWRAP,
            spec=spec,
            ends=ends,
            place=place,
            init_pid=init_pid,
            pidfd=pidfd,
            directory=RunDirectory(owner, work="work", only_grows=False),  # its `.private` is the guest's to empty
            landlock_abi=outfit.landlock_abi,
            notes=(*_NOTES, _TERMINALS_NOTE) if spec.terminal else _NOTES,
            runtime=PYTHON if node is None else node.runtime,
        )

    def tidy(self) -> bool:
        """Remove what is left of runs that are over."""
        return self._workshop.tidy()

    def close(self) -> None:
        """Remove what the last boxes left."""
        self._workshop.close()


def _launch(
    bwrap: str, outfit: Outfit, spec: WorkerSpec, sandbox_id: str, inside: InsideEnds
) -> tuple[subprocess.Popen[bytes], int]:
    """Start bubblewrap and return it with the host's pid of the box's init."""
    status, job = inside.status.fileno(), inside.job.fileno()
    who: dict[str, Any] = {}
    if os.geteuid() == 0:
        who = {"user": _UNPRIVILEGED, "group": _UNPRIVILEGED, "extra_groups": []}
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as its:
        info, info_inside = os.pipe()
        answer = ours.enter_context(open(info, "rb"))
        its.callback(os.close, info_inside)
        generated: dict[str, int] = {}
        for where, text in GENERATED.items():
            generated[where] = os.memfd_create("ringfence", os.MFD_CLOEXEC)
            its.callback(os.close, generated[where])
            os.write(generated[where], text.encode())
            os.lseek(generated[where], 0, os.SEEK_SET)
        nothing = None
        if spec.terminal:
            nothing = os.memfd_create("ringfence", os.MFD_CLOEXEC)
            its.callback(os.close, nothing)
        argv = bwrap_argv(
            outfit.view,
            devices=outfit.devices,
            bwrap=bwrap,
            package=_PACKAGE,
            hostname=sandbox_id,
            disk_bytes=spec.disk_bytes,
            info_fd=info_inside,
            generated=generated,
            command=[
                *(outfit.executable, "-I", "-S", "-B", "-X", "utf8"),
                *("-c", _BOOT.format(source=SOURCE, a=status, b=job)),
            ],
            nothing=nothing,
        )
        process = subprocess.Popen(
            argv,
            env={},
            stdin=inside.stdin,
            stdout=inside.stdout,
            stderr=inside.stderr,
            # the reading end too: bubblewrap killed by SIGPIPE, when we are gone, leaves a child that waits forever
            pass_fds=(status, job, info, info_inside, *generated.values(), *(() if nothing is None else (nothing,))),
            cwd="/",
            umask=0o022,
            **who,
        )
        its.close()
        said = answer.read()
    try:
        return process, int(json.loads(said)["child-pid"])
    except (ValueError, KeyError):
        process.kill()
        process.wait()
        raise IsolationUnavailable("bubblewrap could not build a box here", fix="run `ringfence doctor`") from None


def _furnish(ends: HostEnds, message: dict[str, Any], entrances: tuple[int, ...]) -> dict[str, Any]:
    """Tell the init what to be, and wait until its workspace is furnished."""
    try:
        channel.send(ends.status, message, entrances)
        answer, _ = channel.receive(ends.status)
    except (OSError, ValueError):  # it is gone, or said so in the frames of a worker
        answer = None
    if answer is None:
        raise IsolationUnavailable(f"bubblewrap could not build the box: {_last_words(ends) or 'it gave no reason'}")
    return answer


def _last_words(ends: HostEnds) -> str:
    """Return what bubblewrap wrote to what would have become the guest's standard error."""
    try:
        return os.read(ends.streams.stderr, 4096).decode("utf-8", "replace").strip()
    except BlockingIOError:
        return ""


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
