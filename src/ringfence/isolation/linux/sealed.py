"""The last steps of every box on this kernel: bounded, without privileges, filtered; then the worker and its watcher.

It runs no guest code. What the watcher holds (its status channel) the worker never had, and it is undumpable, so the
worker cannot read, trace or signal it: the exit status it reports cannot be forged from inside.
"""

from __future__ import annotations

import binascii
import json
import os
import resource
import signal

from ringfence.isolation import worker
from ringfence.isolation.linux import anchor, kernel, landlock
from ringfence.isolation.protocol import Kind, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

GUEST_ID = 1000
_QUEUED_SIGNALS = 1024


class Sealing:
    """What every box of one kind is sealed with; the same bytes for all of them."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Take it from what the host sent."""
        self.seal_filter = binascii.a2b_base64(config["seal_filter"])
        self.init_filter = binascii.a2b_base64(config["init_filter"])
        self.landlock_abi: int = config["landlock_abi"]
        with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
            self.last_capability = int(file.read())


def give_up_everything(spec: dict[str, Any], sealing: Sealing, writable: tuple[bytes, ...]) -> None:
    """Put on the limits of `spec`, the Landlock domain and the guest's filter; there is no way back."""
    limit(spec)
    if sealing.landlock_abi:
        landlock.enter(sealing.landlock_abi, writable)
        landlock.prove()
    kernel.load_filter(sealing.seal_filter)


def report_failure(status: int, stage: str, error: BaseException) -> NoReturn:
    """Tell the host that the box could not be built; it must never look like the guest's own failure."""
    report = {"stage": stage, "error": str(error), "errno": getattr(error, "errno", None)}
    os.write(status, encode(Kind.FAILED, json.dumps(report).encode()))
    os._exit(1)


def limit(spec: dict[str, Any]) -> None:
    """Bound each process; the zygote has seen to it that these are not above its own limits."""
    for what, most in (
        (resource.RLIMIT_FSIZE, spec["file_bytes"]),
        (resource.RLIMIT_NOFILE, spec["open_files"]),
        (resource.RLIMIT_NPROC, spec["pids"] + spec["own_pids"]),
    ):
        resource.setrlimit(what, (most, most))
    # queued signals and timers are counted up to the host's user: a guest could use up what all others may queue
    hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    queued = _QUEUED_SIGNALS if hard == resource.RLIM_INFINITY else min(_QUEUED_SIGNALS, hard)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (queued, queued))
    os.setsid()


def shut_to_guest() -> None:
    """Make pid 1 deaf and opaque before the worker exists: with a handler for SIGINT the guest could end it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.set_dumpable(0)


def become_worker(spec: dict[str, Any], job: int) -> NoReturn:
    """Let go of everything but the job channel and wait for the job."""
    kernel.set_dumpable(1)  # so that the host, as an ordinary user, may look at its namespaces
    if job != 3:
        os.dup2(job, 3)
        kernel.close_all_from(4)
    if spec["exec"]:
        # its memory is not this one, so there is nothing to anchor
        os.set_inheritable(3, True)
        os.execve(spec["exec"][0], spec["exec"], os.environ)  # noqa: S606  a parked interpreter, named by the host
    pidfd = anchor.cast(spec["anchor"]) if spec["anchor"] else None
    worker.warm()
    worker.serve(3, pidfd)


def watch(pid: int, status: int, sealing: Sealing) -> NoReturn:
    """Reap until the guest is gone, kill and reap whatever it left behind, then report."""
    kernel.close_all_from(0, status - 1)
    kernel.close_all_from(status + 1)
    farewell(0, os.times().user, 0.0, 0)  # touched now, so that nobody waits for its pages later
    kernel.load_filter(sealing.init_filter)
    while True:
        ended, wait_status, usage = os.wait4(-1, 0)
        if ended == pid:
            break
    _bury_the_rest()
    os.write(status, farewell(wait_status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss))
    os._exit(0)


def _bury_the_rest() -> None:
    """End what the guest started and left; when this returns, this process is alone in its namespace."""
    try:
        while True:
            # a fork that is under way when the signal arrives fails, so nobody slips through
            os.kill(-1, signal.SIGKILL)
            os.wait4(-1, 0)
    except (ProcessLookupError, ChildProcessError):
        return


def farewell(wait_status: int, user: float, system: float, peak_kib: int, left: bytes = b"") -> bytes:
    """Return the message that says how a guest ended, and which processes it may have left."""
    return encode(Kind.EXIT, b"%d %d %d %s" % (wait_status, (user + system) * 1e6, peak_kib, left))
