"""How a freshly forked process becomes the worker of one box: an identity of its own, then nothing left to give up."""

from __future__ import annotations

import os

from ringfence.isolation.linux import kernel, sealed
from ringfence.isolation.linux.sealed import GUEST_ID, Sealing
from ringfence.isolation.native import box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_JOB = 3


class Endpoints:
    """The descriptors of one run, as the zygote received them."""

    def __init__(self, status: int, job: int, stdin: int, stdout: int, stderr: int, lower: int | None = None) -> None:
        """In the order in which the host sends them."""
        self.status = status
        self.job = job
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.lower = lower


def main(spec: dict[str, Any], ends: Endpoints, sealing: Sealing) -> NoReturn:
    """Settle in the box; whatever fails is told to the host with its stage, never taken for the guest's."""
    stage = "descriptors"
    try:
        _keep_only(ends)
        stage = "admission"
        if not os.read(_JOB, 1):
            os._exit(0)  # the host changed its mind
        stage = "process list"
        box.mount_proc()
        stage = "identity"
        _become(spec["uid"])
        stage = "privileges"
        kernel.drop_capabilities(sealing.last_capability)
        stage = "sealing"
        sealed.give_up_everything(spec, sealing, box.WRITABLE)
        stage = "worker"
        os.chdir(box.WORKSPACE)
        sealed.become_worker(spec, _JOB)
    except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
        sealed.report_failure(_JOB, stage, error)


def _keep_only(ends: Endpoints) -> None:
    """Put the run's streams on 0, 1, 2, its job channel on 3, and close all else."""
    # received descriptors are above 8: the zygote's own fill the numbers below
    os.dup2(ends.stdin, 0)
    os.dup2(ends.stdout, 1)
    os.dup2(ends.stderr, 2)
    os.dup2(ends.job, _JOB)
    kernel.close_all_from(_JOB + 1)


def _become(uid: int) -> None:
    """Take an id of this run alone, then a user namespace of its own that owns nothing but it."""
    if uid != os.getuid():
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.set_dumpable(1)  # a process that changed its ids cannot write its own maps otherwise
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWCGROUP)
    kernel.set_dumpable(1)
    kernel.write_file("/proc/self/setgroups", b"deny")
    kernel.write_file("/proc/self/uid_map", b"%d %d 1" % (GUEST_ID, uid))
    kernel.write_file("/proc/self/gid_map", b"%d %d 1" % (GUEST_ID, uid))
    kernel.write_file("/proc/self/oom_score_adj", b"1000")
