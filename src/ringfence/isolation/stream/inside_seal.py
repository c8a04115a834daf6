"""The last steps of a worker in a container: bounded, without new privileges, in a Landlock domain, filtered.

What the image's kernel does not have is told by a word for it, and whether that is enough is for the host to say. One
thing is not: a worker that can reach the descriptors or the memory of its init could say anything in its name.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import resource
import signal

from ringfence.isolation.linux import anchor, kernel, landlock
from ringfence.isolation.linux.steps import Code, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

WRITABLE = ("/workspace/work", "/workspace/artifacts", "/tmp", "/dev/shm")
"""All of them bounded; `/var/tmp` is not, where it is a directory of the image and no other name of `/tmp`."""
_QUEUED_SIGNALS = 1024
_FILTERS = 2


class Exposed(RuntimeError):
    """The init of this container can be reached from inside: nothing it would say could be believed."""


def keep_from(path: str, needed: int) -> bool:
    """Whether `path` cannot be opened so; what opens is closed again."""
    try:
        os.close(os.open(path, needed | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError:
        return True
    return False


def shut_to_guest() -> None:
    """Make this process opaque, and deaf to what its children could send: as pid 1 it needs only have no handler."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    kernel.set_dumpable(0)


class Apart:
    """An init that began as root, and is the guest's equal only while no guest lives: the files are the guest's.

    For kernels where a guest could look into the init of its own user, or kill it. Without an id there is no such init.
    """

    def __init__(self, guest: int | None) -> None:
        """Be the guest's equal."""
        self._guest = guest
        self._is_equal = False
        self.anchors = guest is not None
        """Whether a worker's memory is held by a process of its init's user, whom the guest cannot signal."""
        if guest is not None:
            os.setgroups([])
            self.approach()

    def approach(self) -> None:
        """Do in the guest's name what is done from here on."""
        if self._guest is not None and not self._is_equal:
            self._is_equal = True
            os.setresgid(self._guest, self._guest, 0)
            os.setresuid(self._guest, self._guest, 0)

    def withdraw(self) -> None:
        """Be somebody else again: the guest is about to live."""
        if self._is_equal:
            self._is_equal = False
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)

    def begin_to_become_guest(self) -> None:
        """In this child of the init's: give up what its filters will not let it give up any more."""
        if self._guest is not None:
            self.withdraw()
            kernel.drop_bounding_set()

    def become_guest(self) -> None:
        """Turn this child of the init's into the guest, with no way back; its anchor is left behind."""
        if self._guest is not None:
            if self.anchors:
                _cast_anchor()
            os.setresgid(self._guest, self._guest, self._guest)
            os.setresuid(self._guest, self._guest, self._guest)
            kernel.set_dumpable(1)  # which whoever becomes somebody else is not


def _cast_anchor() -> None:
    """Have this process's memory outlive it: in gVisor taking it apart is half of what a short run takes."""
    steps = Steps(Code(os.uname().machine))
    where = anchor.cast_by_another(steps)
    steps.run()
    anchor.wait_until_at_rest(where[0])


def close_all_from(first: int) -> None:
    """Close every descriptor from `first`, also where the kernel has no call for it."""
    try:
        kernel.close_all_from(first)
    except OSError:
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= first:
                with contextlib.suppress(OSError):  # the listing's own
                    os.close(int(name))


def give_up_everything(setup: dict[str, Any], home: str, of_init: tuple[int, ...], apart: Apart) -> dict[str, Any]:
    """Put on everything that this kernel has, become the guest, and return what that is; there is no way back.

    Raises:
        Exposed: The descriptors `of_init` can be opened from here.
        OSError: A step failed that this kernel has.
    """
    told: dict[str, Any] = {"landlock": 0, "filters": 0, "notes": []}
    apart.begin_to_become_guest()
    kernel.set_dumpable(1)  # a guest may look at itself
    try:
        kernel.write_file("/proc/self/oom_score_adj", b"1000")  # it, and not its init, is what memory is short for
    except OSError:
        told["notes"].append("oom_score")
    for what, most in (
        (resource.RLIMIT_FSIZE, setup["file_bytes"]),
        (resource.RLIMIT_NOFILE, setup["open_files"]),
        (resource.RLIMIT_SIGPENDING, _QUEUED_SIGNALS),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_CORE, 1),  # 1 and not 0: where it is 0 the kernel still starts a handler of the host's
    ):
        _bound(what, most)
    kernel.no_new_privileges()
    _enter_landlock(told, home)
    _load_filters(told, setup["filters"].get(os.uname().machine, ()))
    apart.become_guest()
    _prove(of_init)
    return told


def _bound(what: int, most: int) -> None:
    try:
        soft, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if (soft, hard) != (bound, bound):  # gVisor keeps some of them, but lets only its bundle set them
            resource.setrlimit(what, (bound, bound))
    except PermissionError:  # our profile for engines keeps even us from the core limit, which its engine sets
        if what != resource.RLIMIT_CORE or not _core_is_bound():
            raise


def _core_is_bound() -> bool:
    with open("/proc/self/limits") as limits:
        return any(line.split()[4:6] == ["1", "1"] for line in limits if line.startswith("Max core file size"))


def _enter_landlock(told: dict[str, Any], home: str) -> None:
    abi = kernel.landlock_abi()
    if not abi:
        told["notes"].append("no_landlock")
        return
    first, second = os.dup(0), os.dup(0)
    os.close(first)
    os.close(second)
    steps = Steps(Code(os.uname().machine))
    writable = tuple(os.fsencode(path) for path in (*WRITABLE, home) if os.path.isdir(path))
    landlock.enter(steps, abi, writable, (first, second))
    steps.run()
    told["landlock"] = abi


def _load_filters(told: dict[str, Any], programs: tuple[str, ...]) -> None:
    try:
        for program in programs:
            kernel.load_filter(binascii.a2b_base64(program))
            told["filters"] += 1
    except OSError:
        if told["filters"]:  # the engine allowed the first: what forbids the second is not the engine
            raise
    if told["filters"] < _FILTERS:
        told["notes"].append("no_filter")


def _prove(of_init: tuple[int, ...]) -> None:
    """Try what would let a guest speak in the name of its init."""
    ways = [(f"/proc/1/fd/{fd}", mode) for fd in of_init for mode in (os.O_RDONLY, os.O_WRONLY)]
    for path, mode in (*ways, ("/proc/1/mem", os.O_RDONLY), ("/proc/1/mem", os.O_RDWR)):
        if not keep_from(path, mode):
            raise Exposed(f"{path} can be opened from inside")
