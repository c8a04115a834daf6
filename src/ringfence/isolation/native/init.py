"""Pid 1 of one native run: takes an identity of its own, gives everything up, forks the worker and watches it."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple, NoReturn

from ringfence.isolation.linux import kernel, sealed
from ringfence.isolation.linux.sealed import GUEST_ID, Sealing
from ringfence.isolation.native import box


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
        stage = "privileges"
        kernel.drop_capabilities(sealing.last_capability)
        stage = "sealing"
        sealed.give_up_everything(spec, sealing, box.WRITABLE)
        stage = "fork"
        os.chdir(box.WORKSPACE)
        pid = os.fork()
        if pid == 0:
            sealed.become_worker(spec, ends.job)
        sealed.watch(pid, ends.status, sealing)
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        sealed.report_failure(ends.status, stage, error)


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
    if os.getuid() != uid:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.set_dumpable(1)  # a process that changed its ids cannot write its own maps otherwise
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWCGROUP)
    kernel.set_dumpable(1)
    kernel.write_file("/proc/self/setgroups", b"deny")
    kernel.write_file("/proc/self/uid_map", b"%d %d 1" % (GUEST_ID, uid))
    kernel.write_file("/proc/self/gid_map", b"%d %d 1" % (GUEST_ID, uid))
    kernel.write_file("/proc/self/oom_score_adj", b"1000")
