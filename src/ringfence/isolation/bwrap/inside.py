"""Pid 1 of a box that bubblewrap built: adds Landlock and the filters, forks the worker and watches it."""

from __future__ import annotations

import binascii
import fcntl
import os
import resource
import select
import signal
import socket

from ringfence.isolation.bwrap.argv import PRIVATE, TERMINALS, workspace_links
from ringfence.isolation.linux import channel, egress_door, interpreter, kernel, sealed
from ringfence.isolation.linux.sealed import Sealing
from ringfence.isolation.linux.steps import Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_JOB = 3
_WORK = "/workspace/work"
# not `inputs`: here only Landlock keeps it read-only
_WRITABLE = (b"/workspace/work", b"/workspace/artifacts", PRIVATE.encode())


def main(status_fd: int, job_fd: int) -> NoReturn:
    """Furnish the workspace, report it, seal, fork, watch."""
    stage = "start"
    try:
        kernel.die_with_parent(signal.SIGKILL)
        status = socket.socket(fileno=os.dup(status_fd))
        config, entrances = channel.receive(status)
        status.close()
        if config is None:
            os._exit(0)
        stage = "workspace"
        directory = _furnish()
        stage = "interpreter"
        _bound_zygote_limits()
        os.environ.pop("PWD", None)  # bubblewrap's own, and no longer true
        try:
            interpreter.prepare(config)
        except interpreter.PreloadFailed as error:
            with socket.socket(fileno=os.dup(status_fd)) as end:
                channel.send(end, {"requested": str(error)})
            os._exit(1)
        stage = "admission"
        _report(status_fd)
        if not os.read(status_fd, 1):
            os._exit(0)
        for entrance in entrances:
            os.write(entrance, b"0")
            os.close(entrance)
        stage = "sealing"
        kernel.write_file("/proc/self/oom_score_adj", b"1000")
        os.chdir(_WORK)
        sealing = Sealing(config)
        kernel.load_filter(binascii.a2b_base64(config["base_filter"]))
        steps = Steps(sealing.code)
        terminals = (TERMINALS.encode(),) if config["spec"]["terminal"] else ()
        sealing.give_up_everything(steps, config["spec"], (*_WRITABLE, *terminals), _lowest_free())
        steps.run()
        stage = "fork"
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sealed.shut_to_guest()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _say_so(sealing, config["spec"], job_fd, directory)
            sealed.become_worker(config["spec"])
        os.close(directory)
        _end_with_host(status_fd, pid)
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


def _lowest_free() -> tuple[int, int]:
    """Return the numbers that the next two descriptors will have."""
    first, second = os.dup(0), os.dup(0)
    os.close(first)
    os.close(second)
    return first, second


def _say_so(sealing: Sealing, spec: dict[str, Any], job_fd: int, directory: int) -> None:
    """Tell the host, and let go of everything but the standard streams and the job channel."""
    kernel.set_dumpable(1)  # so that the host, as an ordinary user, may look at its namespaces
    directory = os.dup(directory)  # it may be where the job channel goes
    if job_fd != _JOB:
        os.dup2(job_fd, _JOB)
    steps = Steps(sealing.code)
    told = [directory]
    if spec["egress"]:
        told.append(egress_door.open_up(steps, _lowest_free()[0]))
    sealed.say_so(steps, spec, told)
    steps.run()
    kernel.close_all_from(_JOB + 1)


def _end_with_host(status_fd: int, worker: int) -> None:
    """Have the kernel kill the worker when the host's end of the channel closes; its init then ends by itself."""
    fcntl.fcntl(status_fd, fcntl.F_SETOWN, worker)
    fcntl.fcntl(status_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(status_fd, fcntl.F_SETFL, fcntl.fcntl(status_fd, fcntl.F_GETFL) | os.O_ASYNC)
    gone = select.poll()
    gone.register(status_fd, select.POLLHUP)
    if gone.poll(0):  # before the kernel knew whom to kill
        os._exit(0)


def _bound_zygote_limits() -> None:
    # as in the native launcher, which says why core is 1 and not 0
    for what, wanted in ((resource.RLIMIT_CORE, 1), (resource.RLIMIT_MEMLOCK, 65536), (resource.RLIMIT_MSGQUEUE, 0)):
        hard = resource.getrlimit(what)[1]
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(what, (bound, bound))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a worker's own number is lowered when it is sealed


def _report(status_fd: int) -> None:
    with socket.socket(fileno=os.dup(status_fd)) as status:
        channel.send(status, {"built": True})
