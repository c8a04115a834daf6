"""The box of one browser as the engine holds it: counted, looked at from outside before it is used, ended at once.

The launcher (`launcher`) is started by Playwright, so it comes to us: it connects to a socket made for it alone, and
the kernel says whether it is of our own user.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
import os
import secrets
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Final

from ringfence.browser.filter import browser_filter
from ringfence.browser.port import Bounds
from ringfence.browser.view import view
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux import channel, observe
from ringfence.isolation.linux.egress_door import PORT
from ringfence.isolation.linux.seccomp.filters import init_filter
from ringfence.isolation.linux.workshop import Place, Workshop, pid_of

_SOURCE: Final = str(Path(__file__).resolve().parents[2])
_BOOT: Final = f"import sys; sys.path.append({_SOURCE!r}); from ringfence.browser.launcher import main; main()"
_UIDS: Final = range(0x7247_0000, 0x7248_0000)
"""Host uids (and gids) of browsers in root mode: above every range that systemd hands out, and no guest's."""
_START_SECONDS: Final = 20.0
_END_SECONDS: Final = 10.0
_PEER: Final = struct.Struct("3i")
_serial = itertools.count()


@dataclass(slots=True)
class Box:
    """A box in which a browser runs."""

    sandbox_id: str
    place: Place
    workshop: Workshop
    host: socket.socket
    """The launcher's lifeline: it ends the box when this is closed."""
    door: int
    pidfd: int
    """Of the box's pid 1."""
    _ended: bool = False

    def browser_pid(self) -> int:
        """Return the browser's own process, as this host numbers it.

        Raises:
            IsolationUnavailable: It is gone.
        """
        pid = pid_of(self.pidfd)
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        except OSError:
            children = []
        if not children:
            raise IsolationUnavailable("the browser ended at once", reason="browser_crashed")
        return int(children[0])

    def require_sealed(self) -> None:
        """Refuse a browser that is not held as promised; the kernel is asked, the browser is not.

        Raises:
            IsolationUnavailable: Naming what is missing.
        """
        pid = self.browser_pid()
        seen = observe.look(pid)
        observe.require_sealed(seen, observe.own_namespaces(), filters=1)
        observe.require_door(self.door, seen.namespaces["net"])
        if self.place.cgroup is not None and not self.place.cgroup.holds(observe.membership(pid)):
            raise IsolationUnavailable("the browser is not in its cgroup; nothing was opened in it")

    def end(self) -> None:
        """Kill everything in it, wait until it is gone, and give back what it held; blocks for a moment."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        gone = select.poll()
        gone.register(self.pidfd, select.POLLIN)
        gone.poll(_END_SECONDS * 1000)
        self.host.close()
        os.close(self.door)
        os.close(self.pidfd)
        self.workshop.give_up(self.place)


class Reception:
    """Waits for one launcher; to be made before Playwright starts it."""

    def __init__(self, workshop: Workshop, bounds: Bounds, program: str) -> None:
        """Reserve a cgroup and listen; nothing runs yet."""
        self._workshop, self._bounds, self._program = workshop, bounds, program
        self.sandbox_id = f"rf-browser-{secrets.token_hex(6)}"
        self._name = f"ringfence-{secrets.token_hex(16)}"
        self.was_met = False
        """Whether a launcher came."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(f"\0{self._name}")
            self._listener.listen(1)
            self._listener.settimeout(_START_SECONDS)
            self._place = workshop.reserve(self.sandbox_id, _limits(bounds))
        except BaseException:
            self._listener.close()
            raise

    def command(self) -> tuple[str, list[str]]:
        """Return the program and arguments that Playwright is to start; the browser's own come after them."""
        python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        return python, ["-I", "-S", "-B", "-X", "utf8", "-c", _BOOT, self._name]

    def hurry(self) -> None:
        """Wait for no launcher that has not come yet: nobody starts one any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Box:
        """Tell the launcher what to build, and take over what it built; blocks.

        Raises:
            IsolationUnavailable: No launcher came, or it could not build the box.
        """
        host: socket.socket | None = None
        try:
            host = self._accept()
            channel.send(host, self._told(), self._place.entrances)
            answer, fds = channel.receive(host)
            if answer is None or "failed" in answer:
                why = "it gave no reason" if answer is None else answer["failed"]
                raise IsolationUnavailable(f"no box for a browser could be built: {why}", fix="run `ringfence doctor`")
            host.settimeout(None)
            self._place.shut()
            door, pidfd = fds
            return Box(self.sandbox_id, self._place, self._workshop, host, door, pidfd)
        except BaseException as error:
            if host is not None:
                host.close()
            self._workshop.give_up(self._place)
            if isinstance(error, TimeoutError | OSError):
                raise IsolationUnavailable(f"no box for a browser could be built: {error}") from error
            raise
        finally:
            self._listener.close()

    def _accept(self) -> socket.socket:
        while True:
            host, _ = self._listener.accept()
            _, uid, _ = _PEER.unpack(host.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if uid == os.geteuid():
                host.settimeout(_START_SECONDS)
                self.was_met = True
                return host
            host.close()  # somebody else on this machine, who read the name in /proc/net/unix

    def _told(self) -> dict[str, object]:
        machine = os.uname().machine
        return {
            **view(),
            "uid": _unprivileged() if os.geteuid() == 0 else None,
            "port": PORT,
            "program": self._program,
            "disk_bytes": self._bounds.disk_bytes,
            "filter": binascii.b2a_base64(browser_filter(machine)).decode(),
            "init_filter": binascii.b2a_base64(init_filter(machine)).decode(),
        }


def _limits(bounds: Bounds) -> Limits:
    return Limits(memory_bytes=bounds.memory_bytes, pids=bounds.pids, cpus=bounds.cpus)


def _unprivileged() -> int:
    """Return a uid that is nobody's, and no other living browser's."""
    uid = _UIDS[next(_serial) % len(_UIDS)]
    with open("/proc/self/uid_map", encoding="ascii") as maps:
        mapped = [tuple(map(int, line.split())) for line in maps]
    if not any(inside <= uid < inside + count for inside, _, count in mapped):
        raise IsolationUnavailable(
            "root has no unprivileged ids here to run a browser under", fix="run as an ordinary user"
        )
    return uid
