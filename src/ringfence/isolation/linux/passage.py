"""A way to the ports of one box: a small process steps into its network, and hands out connections made there."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

from ringfence.errors import Unavailable
from ringfence.isolation.linux import streams

_SOURCE = str(Path(__file__).resolve().parents[3])
_BOOT = (
    "import sys; sys.path.append({source!r}); "
    "from ringfence.isolation.linux.passage_inside import main; main({channel}, {network}, {owner})"
)
_NS_GET_USERNS = 0xB701
_ANSWER_SECONDS = 15.0


class Passage:
    """The way into one box; nothing starts before the first connection, and all of it ends with `close`.

    Never in a thread of this process: one that has been in a guest's network must not go on as ours.
    """

    def __init__(self, pid: int, pidfd: int) -> None:
        """Take hold of the network of the process behind `pidfd`, whose number `pid` is, before it runs guest code.

        Raises:
            Unavailable: It is gone, or may not be looked at.
        """
        try:
            self._network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"the network of the box cannot be reached: {error.strerror}") from error
        gone = select.poll()
        gone.register(pidfd, select.POLLIN)
        if gone.poll(0):  # then the number may have been another's
            os.close(self._network)
            raise Unavailable("the process has ended", reason="connect_failed")
        self._lock = threading.Lock()
        self._closed = False
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self, port: int) -> int:
        """Return a descriptor connected to `port` on the box's loopback; blocks, and is safe in any thread.

        Raises:
            Unavailable: Nobody listens there, or the box is gone.
        """
        with self._lock:
            try:
                if self._channel is None:
                    self._channel = self._start()
                self._channel.send(str(port).encode())
                answer, fds, _, _ = socket.recv_fds(self._channel, 256, 1)
            except OSError as error:
                raise Unavailable(f"the box cannot be reached: {error}", reason="connect_failed") from error
        if not fds:
            why = answer.decode("utf-8", "replace") or "the process has ended"
            raise Unavailable(f"port {port} of the process does not answer: {why}", reason="connect_failed")
        os.set_inheritable(fds[0], False)
        return fds[0]

    def close(self) -> None:
        """End the process that is in the box's network."""
        self._closed = True
        if self._process is not None:
            self._process.kill()  # whoever waits for its answer sees it end
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            if self._channel is not None:
                self._channel.close()
            if self._network >= 0:
                os.close(self._network)
                self._network = -1

    def _start(self) -> socket.socket:
        if self._closed:
            raise Unavailable("the process has ended", reason="connect_failed")
        streams.occupy()
        ours, its = streams.pair(socket.SOCK_SEQPACKET)
        # root may step into a network as it is; anybody else only from within the users it belongs to
        owner = -1 if os.geteuid() == 0 else fcntl.ioctl(self._network, _NS_GET_USERNS)
        try:
            with its:
                passed = [fd for fd in (its.fileno(), self._network, owner) if fd >= 0]
                boot = _BOOT.format(source=_SOURCE, channel=its.fileno(), network=self._network, owner=owner)
                executable = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
                self._process = subprocess.Popen(
                    [executable, "-I", "-S", "-B", "-c", boot],
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=passed,
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            if owner >= 0:
                os.close(owner)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(_ANSWER_SECONDS), 0))
        return ours
