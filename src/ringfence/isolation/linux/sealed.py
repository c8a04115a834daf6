"""The last steps of every box on this kernel: bounded, without privileges, filtered; then the worker and its watcher.

It runs no guest code. What the watcher holds (its status channel) the worker never had, and it is undumpable, so the
worker cannot read, trace or signal it: the exit status it reports cannot be forged from inside.
"""

from __future__ import annotations

import binascii
import ctypes
import json
import os
import resource
import signal
import socket

from ringfence.isolation import worker
from ringfence.isolation.linux import egress_door, kernel, landlock
from ringfence.isolation.linux.steps import ANY, Code, Steps
from ringfence.isolation.protocol import Kind, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_QUEUED_SIGNALS = 1024
_JOB = 3


_SECCOMP_SET_MODE_FILTER = 1


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class _Bytes(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


_MOST_FDS = 3


class _Rights(ctypes.Structure):
    _fields_ = (
        *(("size", ctypes.c_size_t), ("level", ctypes.c_int), ("kind", ctypes.c_int)),
        ("fds", ctypes.c_int * _MOST_FDS),
    )


class _Message(ctypes.Structure):
    _fields_ = (
        *(("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32)),
        *(("data", ctypes.POINTER(_Bytes)), ("pieces", ctypes.c_size_t)),
        *(("control", ctypes.POINTER(_Rights)), ("control_length", ctypes.c_size_t), ("flags", ctypes.c_int)),
    )


_SEALED = encode(Kind.SEALED)


class Sealing:
    """What every box of one kind is sealed with; the same bytes for all of them."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Take it from what the host sent."""
        self.seal_filter = binascii.a2b_base64(config["seal_filter"])
        self.init_filter = binascii.a2b_base64(config["init_filter"])
        self.landlock_abi: int = config["landlock_abi"]
        self.code = Code(os.uname().machine)
        with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
            self.last_capability = int(file.read())

    def give_up_everything(
        self, steps: Steps, spec: dict[str, Any], writable: tuple[bytes, ...], free: tuple[int, int]
    ) -> None:
        """Put on the limits of `spec`, the Landlock domain and the guest's filter; there is no way back.

        `free` are the two lowest free descriptors.
        """
        limit(steps, spec)
        if self.landlock_abi:
            landlock.enter(steps, self.landlock_abi, writable, free)
        program = _Program(len(self.seal_filter) // 8, self.seal_filter)
        steps.add("seccomp", _SECCOMP_SET_MODE_FILTER, 0, program)


def say_so(steps: Steps, spec: dict[str, Any], fds: list[int]) -> None:
    """Tell the host that the worker is sealed, so that it looks while the worker warms up, and hand over `fds`.

    Only then is the number of descriptors bounded: no more than that may be on their way in messages of one user, and
    other guests of that user, as much bounded, could use it up.
    """
    size = _Rights.fds.offset + len(fds) * ctypes.sizeof(ctypes.c_int)
    rights = _Rights(size, socket.SOL_SOCKET, socket.SCM_RIGHTS, (ctypes.c_int * _MOST_FDS)(*fds))
    data = _Bytes(_SEALED, len(_SEALED))
    message = _Message(None, 0, ctypes.pointer(data), 1, ctypes.pointer(rights), ctypes.sizeof(rights))
    steps.add("sendmsg", _JOB, message, 0, expect=len(_SEALED))
    _bound(steps, resource.RLIMIT_NOFILE, spec["open_files"])


def report_failure(status: int, stage: str, error: BaseException) -> NoReturn:
    """Tell the host that the box could not be built; it must never look like the guest's own failure."""
    report = {"stage": stage, "error": str(error), "errno": getattr(error, "errno", None)}
    try:
        os.write(status, encode(Kind.FAILED, json.dumps(report).encode()))
    finally:  # also when nobody listens any more: a failed worker must not go on as the zygote whose copy it is
        os._exit(1)


def limit(steps: Steps, spec: dict[str, Any]) -> None:
    """Bound each process; where the application itself may have less, that is the bound."""
    for what, most in (
        (resource.RLIMIT_FSIZE, spec["file_bytes"]),
        (resource.RLIMIT_NPROC, spec["pids"] + spec["own_pids"]),
        # queued signals and timers are counted up to the host's user: a guest could use up what all others may queue
        (resource.RLIMIT_SIGPENDING, _QUEUED_SIGNALS),
    ):
        _bound(steps, what, most)
    steps.add("setsid", expect=ANY)


def _bound(steps: Steps, what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    steps.add("prlimit64", 0, what, (ctypes.c_uint64 * 2)(bound, bound), 0)


def shut_to_guest() -> None:
    """Make pid 1 deaf and opaque before the worker exists: with a handler for SIGINT the guest could end it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.set_dumpable(0)


def become_worker(spec: dict[str, Any]) -> NoReturn:
    """Wait on descriptor 3 for the job; there is no other but the standard streams."""
    if spec["egress"]:
        os.environ.update(egress_door.ENVIRONMENT)
    if spec["exec"]:
        os.set_inheritable(_JOB, True)
        os.execve(spec["exec"][0], spec["exec"], os.environ)  # noqa: S606  a parked interpreter, named by the host
    worker.warm()
    worker.serve(_JOB)


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
