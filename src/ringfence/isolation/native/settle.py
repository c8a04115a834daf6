"""The worker's way from the fork to its place: admitted to its cgroups, in its box, nobody, sealed.

It runs no guest code. Its parent is the zygote, which alone learns how it ends, so no exit status can be forged inside.
"""

from __future__ import annotations

import ctypes
import os

from ringfence.isolation.linux import anchor, egress_door, kernel, sealed
from ringfence.isolation.linux.sealed import Sealing
from ringfence.isolation.linux.steps import AT_FDCWD, Steps
from ringfence.isolation.linux.view import GUEST_ID
from ringfence.isolation.native import box

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_JOB = 3
_DIRECTORY = 4
"""Where the worker holds the run's own file system, until the host has it."""
_FREE = (5, 6, 7)
_NO_MORE = 0x7FFF_FFFF

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

    def __init__(self, fds: list[int]) -> None:
        """In the order in which the host sends them."""
        self.status, *self.inside = fds
        """Where the end is told; then those that the worker takes along."""


class Settling:
    """The steps of every worker of one kind."""

    def __init__(self, spec: dict[str, Any], sealing: Sealing) -> None:
        """List them; what differs from run to run is put in by `prepare`, before the fork."""
        self._steps = steps = Steps(sealing.code)
        self._maps = ctypes.create_string_buffer(_MAP_BYTES)
        lower = _DIRECTORY if spec["layered"] else None
        self._moved = self._take_along(spec["entrances"], layered=lower is not None)
        if lower is None:
            self._furnishing = box.Furnishing(steps, spec, None, _DIRECTORY)
        else:
            self._furnishing = box.Furnishing(steps, spec, lower, lower + 1)
            steps.add("dup3", lower + 1, _DIRECTORY, os.O_CLOEXEC, expect=_DIRECTORY)
            steps.add("close", lower + 1)
        self._ids: list[int] = []
        self._map_writes: list[int] = []
        self._become(takes_id=spec["uid"] != os.getuid())
        self._drop_capabilities(sealing.last_capability)
        sealing.give_up_everything(steps, spec, box.WRITABLE, _FREE[:2])
        steps.add("chdir", box.WORKSPACE)
        steps.add("prctl", _PR_SET_DUMPABLE, 1)  # so that the host, as an ordinary user, may look at its namespaces
        told = [_DIRECTORY]
        if spec["anchor"] and not spec["exec"]:  # another program's memory is not this one's
            anchor.cast(steps, spec["anchor"], _FREE[0], _FREE[1:])
            told.append(_FREE[0])
        if spec["egress"]:
            # after the anchor, which must hold nothing of it, and long before the first line of the guest
            told.append(egress_door.open_up(steps, _FREE[len(told) - 1]))
        sealed.say_so(steps, spec, told)
        steps.add("close_range", _DIRECTORY, _NO_MORE, 0)
        steps.table()

    def prepare(self, spec: dict[str, Any], ends: Endpoints) -> None:
        """Put in what is this run's alone."""
        steps = self._steps
        uid = spec["uid"]
        self._furnishing.prepare(spec["hostname"], uid)
        for row, fd in zip(self._moved, ends.inside, strict=True):
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

    def _take_along(self, entrances: int, *, layered: bool) -> list[int]:
        """Put the streams on 0, 1, 2, the job channel on 3, a lower tree on 4, close all else, and enter the cgroups.

        By its own hand: for a process that moves itself no other has to be held still. Moved by the host it would wait
        for a grace period of the whole machine.
        """
        steps = self._steps
        first = _DIRECTORY + layered
        doors = range(first, first + entrances)
        # received descriptors are above all these: the zygote's own fill the numbers below
        numbers = (_JOB, 0, 1, 2, *range(_DIRECTORY, first), *doors)
        rows = [steps.add("dup3", 0, number, 0, expect=number) for number in numbers]
        steps.add("close_range", first + entrances, _NO_MORE, 0)
        for number in doors:
            steps.add("write", number, b"0", 1, expect=1)
        steps.add("close_range", first, _NO_MORE, 0)
        return rows

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
        steps.add("openat", AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, expect=_FREE[0])
        row = steps.add("write", _FREE[0], data, len(data), expect=len(data))
        steps.add("close", _FREE[0])
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
