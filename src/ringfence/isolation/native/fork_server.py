"""The host's side of one launcher and its zygote: start them, ask for workers, let them go."""

from __future__ import annotations

import binascii
import errno
import os
import socket
import threading
from pathlib import Path
from typing import Any

from ringfence.errors import InternalError, InvalidRequest, IsolationUnavailable
from ringfence.isolation.linux import channel, kernel, landlock
from ringfence.isolation.linux.outfit import Outfit
from ringfence.isolation.native import identity, idle, ignition
from ringfence.ports import WorkerLost, WorkerSpec

_ANSWER_SECONDS = 30.0


class ForkServer:
    """A running zygote; `spawn` may be called from several threads."""

    def __init__(self, outfit: Outfit) -> None:
        """Start the launcher and wait until its zygote serves.

        Raises:
            IsolationUnavailable: The namespaces or mounts cannot be made here.
            InvalidRequest: A module that was to be preloaded cannot be.
        """
        self.base_id = _root_base() if os.geteuid() == 0 else None
        self.landlock_abi = outfit.landlock_abi
        self.notes = outfit.view.notes()
        self.broken = False
        self._spawning = threading.Lock()
        self._mounting = threading.Lock()
        self._ignition = ignition.take(outfit.executable)
        self._host, self._control = self._ignition.host, self._ignition.control
        self._process = self._ignition.process
        try:
            self._start(outfit)
        except BaseException:
            self.close()
            raise

    def _start(self, outfit: Outfit) -> None:
        for end in (self._host, self._control):
            end.settimeout(_ANSWER_SECONDS)
        message = outfit.to_message(source=ignition.SOURCE)
        message["idle"] = binascii.b2a_base64(idle.program(os.uname().machine), newline=False).decode()
        channel.send(self._host, {**message, "mapped_by_host": self.base_id is not None})
        if self.base_id is not None:
            self._expect(self._host, "unshared")
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{self._process.pid}/{kind}").write_text(identity.id_map(self.base_id))
            channel.send(self._host, {"mapped": True})
        self._expect(self._host, "launched")
        self._expect(self._control, "ready")

    def _expect(self, end: socket.socket, word: str) -> None:
        try:
            answer, _ = channel.receive(end)
        except TimeoutError:
            raise IsolationUnavailable(f"the box's launcher did not answer within {_ANSWER_SECONDS:.0f} s") from None
        if answer is None:
            raise IsolationUnavailable("the box's launcher ended before it was ready")
        if answer.get("requested"):
            raise InvalidRequest(answer["failed"], reason="preload_failed")
        if "failed" in answer:
            raise IsolationUnavailable(f"the box cannot be built here: {answer['failed']}")
        if word not in answer:
            raise InternalError(f"the box's launcher said {answer} where {word!r} was due")

    def request(
        self,
        sandbox_id: str,
        spec: WorkerSpec,
        offset: int,
        *,
        argv: list[str] | None = None,
        entrances: int = 0,
        layered: bool = False,
    ) -> dict[str, Any]:
        """Return what `spawn` is to be asked for: a box of `spec` whose guest is the id at `offset`."""
        return {
            "id": sandbox_id,
            "hostname": sandbox_id,
            "uid": offset,
            "disk_bytes": spec.disk_bytes,
            "inodes": spec.inodes,
            "open_files": spec.open_files,
            "file_bytes": spec.file_bytes,
            "pids": spec.pids,
            "own_pids": 1,
            # only where the guest can be kept from waking it: the version of Landlock that does so
            "anchor": self.landlock_abi if self.landlock_abi >= landlock.SIGNALS_SCOPED_SINCE else None,
            "exec": argv,
            "layered": layered,
            "entrances": entrances,
            "terminal": spec.terminal,
            "egress": spec.egress,
        }

    def spawn(self, spec: dict[str, Any], fds: tuple[int, ...]) -> int:
        """Start a box whose worker holds copies of `fds`, and return a pidfd of its init.

        Raises:
            WorkerLost: The zygote died; another one is needed.
        """
        with self._spawning:
            answer, received = self._ask(self._control, spec, "id", fds, most=channel.SHORT)
        if "failed" in answer:
            raise IsolationUnavailable(f"the box cannot be built here: {answer['failed']}")
        return received[0]

    def _ask(
        self, end: socket.socket, question: dict[str, Any], name: str, fds: tuple[int, ...] = (), *, most: int
    ) -> tuple[dict[str, Any], list[int]]:
        """Return the answer to `question`, which has the same `name`, and what came with it.

        Raises:
            WorkerLost: There is none; another zygote is needed.
        """
        if self.broken:
            raise WorkerLost("the zygote is gone")
        try:
            channel.send(end, question, fds)
            answer, received = channel.receive(end, most)
        except OSError as error:
            # also when it is only late: its next answer would be to this question. A refusal because too many
            # descriptors of this user are on their way sends nothing, and passes.
            if error.errno != errno.ETOOMANYREFS:
                self.broken = True
            raise WorkerLost(f"the zygote does not answer: {error}") from error
        if answer is None or answer.get(name) != question[name]:
            self.broken = True
            for fd in received:
                os.close(fd)
            raise WorkerLost("the zygote is gone")
        return answer, received

    def owner(self, offset: int) -> tuple[int, int] | None:
        """Return the host's uid and gid of a guest, or None when they are the caller's own."""
        if self.base_id is None:
            return None
        host = identity.host_id(self.base_id, offset)
        return host, host

    def open_work_directory(self, directory: int) -> int:
        """Return a detached read-only mount of the directory behind a descriptor.

        Raises:
            WorkerLost: The launcher died; another one is needed.
        """
        if self.base_id is not None:
            # as root the launcher has become nobody; this process can do it itself
            return kernel.clone_tree(b"", directory)
        with self._mounting:
            # a mount of another namespace cannot be copied, so the launcher walks the path in its own
            question = {"path": os.readlink(f"/proc/self/fd/{directory}")}
            answer, received = self._ask(self._host, question, "path", most=channel.LONG)
        if "failed" in answer:
            raise InternalError(f"the session's work directory cannot be mounted: {answer['failed']}")
        if not os.path.samestat(os.fstat(received[0]), os.fstat(directory)):
            os.close(received[0])
            raise InternalError("the session's work directory was replaced while it was being mounted")
        return received[0]

    def close(self) -> None:
        """End the zygote and every run that is still in it."""
        self._ignition.put_out()


def _root_base() -> int:
    base = identity.choose_base(Path("/proc/self/uid_map").read_text())
    if base is None:
        raise IsolationUnavailable(
            "running as root, but no range of 65536 unprivileged ids is mapped in this user namespace",
            fix="run Ringfence as an ordinary user here",
        )
    return base
