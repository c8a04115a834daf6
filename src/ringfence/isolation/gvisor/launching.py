"""The host's side of one launcher: start it in ids of nobody's, have it start boxes, let it go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringfence.errors import InternalError, IsolationUnavailable
from ringfence.isolation.linux import channel, streams
from ringfence.ports import WorkerLost

_SOURCE = str(Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path.append({source!r}); from ringfence.isolation.gvisor.launcher import main; main({fd})"
_ANSWER_SECONDS = 30.0
_IDS = 65_536
_BASE_ID = 0x7247_0000
"""The first of the host's ids that boxes have, when root starts them; the range after those of native boxes."""


class Launcher:
    """A running launcher; `start` may be called from several threads."""

    def __init__(self, trees: Sequence[tuple[str, str]], mount_points: Mapping[str, Sequence[str]]) -> None:
        """Start it with a root of `trees`, each a path of the host and where it is there.

        `mount_points` are directories there that are to have these empty directories, and nothing else.

        Raises:
            IsolationUnavailable: The namespaces or mounts cannot be made here.
        """
        streams.occupy()
        self._broken = False
        self.owns_ids = os.geteuid() == 0
        self._asking = threading.Lock()
        self._channel, inner = streams.pair(socket.SOCK_SEQPACKET)
        with inner:
            python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
            boot = _BOOT.format(source=_SOURCE, fd=inner.fileno())
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", "-X", "utf8", "-c", boot],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(inner.fileno(),),
                cwd="/",
            )
        try:
            self._channel.settimeout(_ANSWER_SECONDS)
            self._begin(trees, mount_points)
        except BaseException:
            self.close()
            raise

    def _begin(self, trees: Sequence[tuple[str, str]], mount_points: Mapping[str, Sequence[str]]) -> None:
        wanted = {"trees": list(trees), "mount_points": dict(mount_points), "mapped_by_host": self.owns_ids}
        channel.send(self._channel, wanted)
        if self.owns_ids:
            self._expect("unshared")
            try:
                for kind in ("uid_map", "gid_map"):
                    Path(f"/proc/{self._process.pid}/{kind}").write_text(f"0 {_BASE_ID} {_IDS}\n")
            except OSError as error:
                raise IsolationUnavailable(
                    f"running as root, but no range of {_IDS} unprivileged ids can be had here: {error}",
                    fix="run Ringfence as an ordinary user here",
                ) from error
            channel.send(self._channel, {"mapped": True})
        self._expect("ready")

    def _expect(self, word: str) -> None:
        try:
            answer, _ = channel.receive(self._channel)
        except TimeoutError:
            raise IsolationUnavailable(f"the launcher of gVisor did not answer in {_ANSWER_SECONDS:.0f} s") from None
        if answer is None:
            raise IsolationUnavailable("the launcher of gVisor ended before it was ready")
        if "failed" in answer:
            raise IsolationUnavailable(
                f"gVisor cannot be given a place of its own here: {answer['failed']}",
                fix="see `ringfence doctor` for what this machine lets its users make",
            )
        if word not in answer:
            raise InternalError(f"the launcher of gVisor said {answer} where {word!r} was due")

    def start(self, wanted: dict[str, Any], fds: Sequence[int]) -> int:
        """Start a box that has copies of `fds`: three streams, then the entrances of its cgroup; return its pidfd.

        Raises:
            IsolationUnavailable: It could not be started.
            WorkerLost: The launcher died; another one is needed.
        """
        with self._asking:
            try:
                channel.send(self._channel, wanted, tuple(fds))
                answer, received = channel.receive(self._channel)
            except OSError as error:
                self._broken = True  # its next answer would be to this question
                raise WorkerLost(f"the launcher of gVisor does not answer: {error}") from error
            if answer is None:
                self._broken = True
                raise WorkerLost("the launcher of gVisor is gone")
        if "failed" in answer:
            raise IsolationUnavailable(f"the box cannot be started: {answer['failed']}")
        return received[0]

    @property
    def is_gone(self) -> bool:
        """Whether another one is needed."""
        return self._broken or self._process.poll() is not None

    def close(self) -> None:
        """End it, and with it every box that is left."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
