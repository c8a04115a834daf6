"""Pid 1 of a box that bubblewrap built: adds Landlock and the filters, forks the worker and watches it."""

from __future__ import annotations

import base64
import os
import resource
import signal
import socket
from typing import Any, NoReturn

from ringfence.isolation.bwrap.argv import PRIVATE, workspace_links
from ringfence.isolation.linux import channel, interpreter, kernel, sealed
from ringfence.isolation.linux.sealed import Sealing

_WORK = "/workspace/work"
# not `inputs`: here only Landlock keeps it read-only
_WRITABLE = (b"/workspace/work", b"/workspace/artifacts", PRIVATE.encode())


def main(status_fd: int, job_fd: int) -> NoReturn:
    """Furnish the workspace, report it, seal, fork, watch."""
    stage = "start"
    try:
        status = socket.socket(fileno=os.dup(status_fd))
        config, _ = channel.receive(status)
        status.close()
        if config is None:
            os._exit(0)
        stage = "workspace"
        directory = _furnish()
        stage = "interpreter"
        _bound_zygote_limits()
        interpreter.prepare(config)
        stage = "admission"
        _report(status_fd, directory)
        if not os.read(status_fd, 1):
            os._exit(0)
        stage = "sealing"
        kernel.write_file("/proc/self/oom_score_adj", b"1000")
        os.chdir(_WORK)
        sealing = _sealing(config)
        kernel.load_filter(base64.b64decode(config["base_filter"]))
        sealed.give_up_everything(config["spec"], sealing, _WRITABLE)
        stage = "fork"
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sealed.shut_to_guest()
        pid = os.fork()
        if pid == 0:
            sealed.become_worker(config["spec"], job_fd)
        sealed.watch(pid, status_fd, sealing)
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        sealed.report_failure(status_fd, stage, error)


def _furnish() -> int:
    for name in ("inputs", "work", "artifacts"):
        os.mkdir(f"/workspace/{name}", 0o755)
    for path, mode in (
        (PRIVATE, 0o755),
        (f"{PRIVATE}/tmp", 0o1777),
        (f"{PRIVATE}/shm", 0o1777),
        (f"{PRIVATE}/home", 0o755),
    ):
        os.mkdir(path)
        os.chmod(path, mode)
    for says, where in workspace_links():
        os.symlink(says, f"/{where}")
    return os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _bound_zygote_limits() -> None:
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE):
        resource.setrlimit(what, (0, 0))


def _report(status_fd: int, directory: int) -> None:
    with socket.socket(fileno=os.dup(status_fd)) as status:
        channel.send(status, {"built": True}, [directory])
    os.close(directory)


def _sealing(config: dict[str, Any]) -> Sealing:
    return Sealing(
        seal_filter=base64.b64decode(config["seal_filter"]),
        init_filter=base64.b64decode(config["init_filter"]),
        landlock_abi=config["landlock_abi"],
        last_capability=sealed.last_capability(),
    )
