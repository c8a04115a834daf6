"""The host's end of a container's way out: a socket without a name, where a proxy accepts what the guest connects to.

To the proxy it is what a native box hands out. Behind it is no network, but the stream of one container: whoever is
accepted here connected to the loopback inside.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading

_BACKLOG = 1024


class WayOut:
    """Where one container's calls arrive."""

    def __init__(self) -> None:
        """Listen, where nobody but this object can connect: the name is gone before anybody can know it.

        Raises:
            OSError: There is no room for it.
        """
        with contextlib.ExitStack() as built, tempfile.TemporaryDirectory(prefix="ringfence-door-") as directory:
            place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            built.callback(os.close, place)
            with contextlib.ExitStack() as kept:
                listener = kept.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                listener.bind(f"/proc/self/fd/{place}/door")  # shorter than any path, of which a socket takes few
                listener.listen(_BACKLOG)
                self._socket = os.open("door", os.O_PATH | os.O_CLOEXEC, dir_fd=place)
                kept.pop_all()
        self.door = listener.detach()
        """The listening socket."""
        self._lock = threading.Lock()
        self._closed = False

    def connect(self) -> socket.socket:
        """Return a connection to whoever listens; it never waits, and is for any thread.

        Raises:
            OSError: Nobody does any more, or there are too many who were not accepted yet.
        """
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.setblocking(False)
            with self._lock:  # closed meanwhile, the number could be that of another container's
                if self._closed:
                    raise ConnectionRefusedError
                end.connect(f"/proc/self/fd/{self._socket}")
        except BaseException:
            end.close()
            raise
        return end

    def close(self) -> None:
        """Let nobody arrive any more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.door)
                os.close(self._socket)
