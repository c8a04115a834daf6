"""The last steps of every box on this kernel: bounded, without privileges, filtered; then the worker and its watcher.

It runs no guest code. What the watcher holds (its status channel) the worker never had, and it is undumpable, so the
worker cannot read, trace or signal it: the exit status it reports cannot be forged from inside.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from typing import Any, NamedTuple, NoReturn

from ringfence.isolation import worker
from ringfence.isolation.linux import kernel, landlock
from ringfence.isolation.protocol import Kind, encode

GUEST_ID = 1000


class Sealing(NamedTuple):
    """What every box of one kind is sealed with; the same bytes for all of them."""

    seal_filter: bytes
    init_filter: bytes
    landlock_abi: int
    last_capability: int


def last_capability() -> int:
    """Return the highest capability this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
        return int(file.read())


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
        (resource.RLIMIT_NPROC, spec["pids"] + 1),  # this process is counted too
    ):
        resource.setrlimit(what, (most, most))
    os.setsid()


def shut_to_guest() -> None:
    """Make pid 1 deaf and opaque before the worker exists: with a handler for SIGINT the guest could end it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.set_dumpable(0)


def become_worker(spec: dict[str, Any], job: int) -> NoReturn:
    """Let go of everything but the job channel and wait for the job."""
    kernel.set_dumpable(1)  # so that the host, as an ordinary user, may look at its namespaces
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(job, 3)
    kernel.close_all_from(4)
    if spec["exec"]:
        os.set_inheritable(3, True)
        os.execve(spec["exec"][0], spec["exec"], os.environ)  # noqa: S606  a parked interpreter, named by the host
    worker.warm()
    worker.serve(3)


def watch(pid: int, status: int, sealing: Sealing) -> NoReturn:
    """Reap until the guest is gone, report, and take whatever it left behind along."""
    kernel.close_all_from(0, status - 1)
    kernel.close_all_from(status + 1)
    kernel.load_filter(sealing.init_filter)
    while True:
        ended, wait_status, usage = os.wait4(-1, 0)
        if ended == pid:
            break
    cpu_us = round((usage.ru_utime + usage.ru_stime) * 1e6)
    report = {"wait_status": wait_status, "cpu_us": cpu_us, "peak_kib": usage.ru_maxrss}
    os.write(status, encode(Kind.EXIT, json.dumps(report).encode()))
    os._exit(0)
