"""The worker's way from the fork to its place: admitted to its cgroups, nobody, without privileges, sealed.

It runs no guest code. Its parent is the zygote, which alone learns how it ends, so no exit status can be forged inside.
"""

from __future__ import annotations

import ctypes
import os

from ringfence.isolation.linux import anchor, kernel, sealed
from ringfence.isolation.linux.sealed import GUEST_ID, Sealing
from ringfence.isolation.linux.steps import AT_FDCWD, Steps
from ringfence.isolation.native import box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_JOB = 3
_FIRST_FREE = 4
_NO_MORE = 0x7FFF_FFFF
_PROC_OPTIONS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# NOROOT, NO_SETUID_FIXUP, KEEP_CAPS (lock only), each with its lock
_SECUREBITS_ALL_LOCKED = 0x2F
_CAPABILITY_VERSION_3 = 0x2008_0522
_MAP_BYTES = 32


class Endpoints:
    """The descriptors of one run, as the zygote received them."""

    def __init__(self, fds: list[int], entrances: int) -> None:
        """In the order in which the host sends them; `entrances` is how many lead into a cgroup."""
        self.status, *self.inside = fds[:5]
        """Where the end is told; then those that the worker keeps: its job channel and its standard streams."""
        self.entrances = fds[5 : 5 + entrances]
        self.lower = fds[5 + entrances] if len(fds) > 5 + entrances else None


class Settling:
    """The steps of every worker of one kind."""

    def __init__(self, spec: dict[str, Any], sealing: Sealing, entrances: int) -> None:
        """List them; what differs from run to run is put in by `main`'s caller, before the fork."""
        self._steps = steps = Steps(sealing.code)
        self._maps = ctypes.create_string_buffer(_MAP_BYTES)
        self._moved = self._keep_only(entrances)
        self._enter_cgroups(entrances)
        # the processes of the worker's own pid namespace, and only those it may look into
        steps.add("mount", b"proc", b"/proc", b"proc", _PROC_OPTIONS, b"subset=pid,hidepid=invisible")
        self._ids: list[int] = []
        self._map_writes: list[int] = []
        self._become(takes_id=spec["uid"] != os.getuid())
        self._drop_capabilities(sealing.last_capability)
        free = (_FIRST_FREE, _FIRST_FREE + 1)
        sealing.give_up_everything(steps, spec, box.WRITABLE, free)
        steps.add("chdir", box.WORKSPACE)
        steps.add("prctl", _PR_SET_DUMPABLE, 1)  # so that the host, as an ordinary user, may look at its namespaces
        anchored = bool(spec["anchor"] and not spec["exec"])  # another program's memory is not this one's
        if anchored:
            anchor.cast(steps, spec["anchor"], _FIRST_FREE, (_FIRST_FREE + 1, _FIRST_FREE + 2))
        sealed.say_so(steps, _FIRST_FREE if anchored else None)
        steps.table()

    def prepare(self, uid: int, ends: Endpoints) -> None:
        """Put in what is this run's alone."""
        steps = self._steps
        for row, fd in zip(self._moved, (*ends.inside, *ends.entrances), strict=True):
            steps.set(row, 0, fd)
        for row in self._ids:
            for argument in range(3):
                steps.set(row, argument, uid)
        self._maps.value = b"%d %d 1" % (GUEST_ID, uid)
        length = len(self._maps.value)
        for row in self._map_writes:
            steps.set(row, 2, length)
            steps.expect(row, length)

    def main(self, spec: dict[str, Any]) -> NoReturn:
        """Settle in the box; whatever fails is told to the host, never taken for the guest's."""
        try:
            self._steps.run()
            sealed.become_worker(spec)
        except BaseException as error:  # noqa: BLE001  reported to the host, whatever it is
            sealed.report_failure(_JOB, "settling", error)

    def _keep_only(self, entrances: int) -> list[int]:
        """Put the run's streams on 0, 1, 2, its job channel on 3, its entrances behind them, and close all else."""
        # received descriptors are above all these: the zygote's own fill the numbers below
        numbers = (_JOB, 0, 1, 2, *range(_FIRST_FREE, _FIRST_FREE + entrances))
        rows = [self._steps.add("dup3", 0, number, 0, expect=number) for number in numbers]
        self._steps.add("close_range", len(numbers), _NO_MORE, 0)
        return rows

    def _enter_cgroups(self, entrances: int) -> None:
        """Move in by its own hand: for a process that moves itself no other has to be held still.

        Moved by the host it would wait for a grace period of the whole machine.
        """
        for number in range(_FIRST_FREE, _FIRST_FREE + entrances):
            self._steps.add("write", number, b"0", 1, expect=1)
        self._steps.add("close_range", _FIRST_FREE, _NO_MORE, 0)

    def _become(self, *, takes_id: bool) -> None:
        """Take an id of this run alone, then a user namespace of its own that owns nothing but it."""
        steps = self._steps
        if takes_id:
            self._ids = [steps.add("setresgid"), steps.add("setresuid")]
        steps.add("prctl", _PR_SET_DUMPABLE, 1)  # a process that changed its ids cannot write its own maps otherwise
        steps.add("unshare", kernel.CLONE_NEWUSER | kernel.CLONE_NEWCGROUP)
        steps.add("prctl", _PR_SET_DUMPABLE, 1)
        self._write(b"/proc/self/setgroups", b"deny")
        self._map_writes = [self._write(path, self._maps) for path in (b"/proc/self/uid_map", b"/proc/self/gid_map")]
        self._write(b"/proc/self/oom_score_adj", b"1000")

    def _write(self, path: bytes, data: bytes | ctypes.Array[ctypes.c_char]) -> int:
        steps = self._steps
        steps.add("openat", AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, expect=_FIRST_FREE)
        row = steps.add("write", _FIRST_FREE, data, len(data), expect=len(data))
        steps.add("close", _FIRST_FREE)
        return row

    def _drop_capabilities(self, last_capability: int) -> None:
        """Empty every capability set for good; securebits first, because locking them needs CAP_SETPCAP."""
        steps = self._steps
        steps.add("prctl", _PR_SET_SECUREBITS, _SECUREBITS_ALL_LOCKED)
        for capability in range(last_capability + 1):
            steps.add("prctl", _PR_CAPBSET_DROP, capability)
        steps.add("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
        nothing = (ctypes.c_uint32 * 6)()
        steps.add("capset", (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), nothing)
