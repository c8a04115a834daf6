"""Pid 1 of one run: gives everything up, forks the worker, and reports how it ended.

It runs no guest code. What it holds (its status channel) the worker never had, and it is undumpable, so the worker
cannot read, trace or signal it: the exit status it reports cannot be forged from inside.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from ringfence.isolation import worker
from ringfence.isolation.native import box, kernel, landlock
from ringfence.isolation.protocol import Kind, encode

GUEST_ID = 1000


class Sealing(NamedTuple):
    """What every box of one zygote is sealed with; the same bytes for all of them."""

    seal_filter: bytes
    init_filter: bytes
    landlock_abi: int
    last_capability: int


class Endpoints(NamedTuple):
    """The descriptors of one run, as the zygote received them."""

    status: int
    job: int
    stdin: int
    stdout: int
    stderr: int


def main(spec: dict[str, Any], ends: Endpoints, sealing: Sealing) -> NoReturn:
    """Seal, fork, report; whatever fails is told to the host with its stage, never taken for the guest's."""
    stage = "descriptors"
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _keep_only(ends)
        stage = "admission"
        if not os.read(ends.status, 1):
            os._exit(0)  # the host changed its mind
        stage = "identity"
        _become(spec["uid"])
        stage = "limits"
        limit(spec)
        stage = "privileges"
        kernel.drop_capabilities(sealing.last_capability)
        stage = "landlock"
        if sealing.landlock_abi:
            landlock.enter(sealing.landlock_abi, box.WRITABLE)
            landlock.prove()
        stage = "seccomp"
        kernel.load_filter(sealing.seal_filter)
        stage = "fork"
        os.chdir(box.WORKSPACE)
        pid = os.fork()
        if pid == 0:
            become_worker(spec, ends.job)
        watch(pid, ends.status, sealing)
    except BaseException as error:
        report = {"stage": stage, "error": str(error), "errno": getattr(error, "errno", None)}
        os.write(ends.status, encode(Kind.FAILED, json.dumps(report).encode()))
    os._exit(1)


def _keep_only(ends: Endpoints) -> None:
    """Put the run's streams on 0, 1, 2 and close all that is not this run's own."""
    os.dup2(ends.stdin, 0)
    os.dup2(ends.stdout, 1)
    os.dup2(ends.stderr, 2)
    low, high = min(ends.status, ends.job), max(ends.status, ends.job)
    kernel.close_all_from(3, low - 1)
    kernel.close_all_from(low + 1, high - 1)
    kernel.close_all_from(high + 1)


def _become(uid: int) -> None:
    """Take an id of this run alone, then a user namespace of its own that owns nothing but it."""
    if uid != GUEST_ID:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.set_dumpable(1)  # a process that changed its ids cannot write its own maps otherwise
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWCGROUP)
    kernel.set_dumpable(1)
    kernel.write_file("/proc/self/setgroups", b"deny")
    kernel.write_file("/proc/self/uid_map", b"%d %d 1" % (GUEST_ID, uid))
    kernel.write_file("/proc/self/gid_map", b"%d %d 1" % (GUEST_ID, uid))
    kernel.write_file("/proc/self/oom_score_adj", b"1000")


def limit(spec: dict[str, Any]) -> None:
    """Bound each process; the zygote has seen to it that these are not above its own limits."""
    for what, most in (
        (resource.RLIMIT_FSIZE, spec["file_bytes"]),
        (resource.RLIMIT_NOFILE, spec["open_files"]),
        (resource.RLIMIT_NPROC, spec["pids"] + 1),  # this process is counted too
    ):
        resource.setrlimit(what, (most, most))
    os.setsid()


def become_worker(spec: dict[str, Any], job: int) -> NoReturn:
    """Let go of everything but the job channel and wait for the job."""
    kernel.set_dumpable(1)  # so that the host, as an ordinary user, may look at its namespaces
    os.dup2(job, 3)
    kernel.close_all_from(4)
    if spec["exec"]:
        os.set_inheritable(3, True)
        os.execve(spec["exec"][0], spec["exec"], os.environ)
    worker.warm()
    worker.serve(3)


def watch(pid: int, status: int, sealing: Sealing) -> NoReturn:
    """Reap until the guest is gone, report, and take whatever it left behind along."""
    kernel.set_dumpable(0)
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
