"""The mold of one kind of worker: a copy of the zygote that forks when it is told to, waits for the dead, and no more.

Every page that a process writes after a fork is copied, in whichever of the two writes first. The zygote reads messages
and watches runs: were it the one that forks, it would copy two hundred pages for every worker (ADR 0054). A mold runs a
dozen lines between two forks, so that its memory stays as it was cast. It is the parent of its workers, and so the one
who learns how they end; like the zygote it never runs guest code and is in no guest's reach.
"""

from __future__ import annotations

import array
import errno
import os
import socket

from ringfence.isolation.linux import channel, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ringfence.isolation.native.settle import Settling

RECEIVED = 16
"""The lowest descriptor that comes with a request: those below are more than a worker gives numbers of its own to."""

_CHANNEL = 3
_PID_BYTES = 8
_MOST_ANSWER = 128
_NO_MORE = 0x7FFF_FFFF


class MoldLost(RuntimeError):
    """A mold is gone, and with it the only one who could say how its workers end."""


class Mold:
    """A mold as the zygote holds it."""

    def __init__(self, settling: Settling, spec: dict[str, Any]) -> None:
        """Cast it: a fork of this process, in which the steps of `settling` lie where they lie here."""
        self._settling = settling
        self._alive = 0
        self._retired = False
        self._channel, inner = channel.pair()
        with inner:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    _serve(inner.fileno(), settling, spec)
                finally:  # whatever it is: it must not go on as the zygote whose copy it is
                    os._exit(1)

    def birth(self, spec: dict[str, Any], processes: int, inside: list[int]) -> int:
        """Fork a worker into the pid namespace `processes`, with copies of the descriptors `inside`; return its pid.

        Raises:
            OSError: It could not be forked.
            MoldLost: The mold is gone.
        """
        self._settling.prepare(spec)
        pid = int(self._ask(self._settling.sheet, array.array("i", [processes, *inside])))
        if pid < 0:
            raise OSError(-pid, f"no worker could be forked: {os.strerror(-pid)}")
        self._alive += 1
        return pid

    def reap(self, pid: int) -> tuple[int, float, float, int]:
        """Return how a worker ended, its processor time as user and as system, and its peak in KiB.

        Raises:
            MoldLost: The mold is gone.
        """
        status, user, system, peak = self._ask(pid.to_bytes(_PID_BYTES, "little")).split()
        self._alive -= 1
        self._end_if_unused()
        return int(status), float(user), float(system), int(peak)

    def retire(self) -> None:
        """Let it end with the last of its workers."""
        self._retired = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and not self._alive:
            self._channel.close()
            os.waitpid(self._pid, 0)

    def _ask(self, request: bytes | memoryview, fds: array.array[int] | None = None) -> bytes:
        ancillary = [] if fds is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        try:
            self._channel.sendmsg([request], ancillary)
            answer = self._channel.recv(_MOST_ANSWER)
        except ConnectionError:
            answer = b""
        if not answer:
            raise MoldLost("a mold of workers is gone")
        return answer


def _serve(inner: int, settling: Settling, spec: dict[str, Any]) -> NoReturn:
    """Be the mold until the zygote is gone: let go of all that is its, and make nothing that is not needed."""
    os.dup2(inner, _CHANNEL, inheritable=False)
    for number in range(_CHANNEL + 1, RECEIVED):
        os.dup2(0, number, inheritable=False)
    kernel.close_all_from(RECEIVED)
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, _CHANNEL)
    due = [array.array("i", range(RECEIVED, RECEIVED + 1 + settling.takes_along)).tobytes()]
    space = socket.CMSG_SPACE(len(due[0]))
    sheet = settling.sheet
    while True:
        size, ancillary, _, _ = requests.recvmsg_into([sheet], space, socket.MSG_CMSG_CLOEXEC)
        if size == _PID_BYTES:
            _, status, usage = os.wait4(int.from_bytes(sheet[:_PID_BYTES], "little"), 0)
            requests.send(b"%d %f %f %d" % (status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss))
            continue
        if size != len(sheet):
            os._exit(0)  # the zygote has no more use for it
        try:
            if [fds for _, _, fds in ancillary] != due:
                raise OSError(errno.EMFILE, "no room for what came with the request")
            kernel.setns(RECEIVED, kernel.CLONE_NEWPID)
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            settling.main(spec)
        kernel.close_all_from(RECEIVED)
        requests.send(b"%d" % pid)
