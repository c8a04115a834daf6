"""The host's side of one launcher and its zygote: start them, ask for workers, let them go."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringfence.errors import InternalError, IsolationUnavailable
from ringfence.isolation.native import channel, identity, kernel
from ringfence.isolation.native.template import Template

_ANSWER_SECONDS = 30.0
_SOURCE = str(Path(__file__).resolve().parents[3])
_BOOT = "import sys; sys.path.append({source!r}); from ringfence.isolation.native.launcher import main; main({a}, {b})"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything a zygote is made from; two equal configs may share one zygote."""

    executable: str
    template: Template
    base_filter: bytes
    seal_filter: bytes
    init_filter: bytes
    landlock_abi: int
    environment: tuple[tuple[str, str], ...]
    sys_path: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()

    def to_message(self, *, mapped_by_host: bool) -> dict[str, Any]:
        """Return plain JSON values for the launcher."""
        return {
            "mapped_by_host": mapped_by_host,
            "source": _SOURCE,
            "template": self.template.to_message(),
            "base_filter": base64.b64encode(self.base_filter).decode(),
            "seal_filter": base64.b64encode(self.seal_filter).decode(),
            "init_filter": base64.b64encode(self.init_filter).decode(),
            "landlock_abi": self.landlock_abi,
            "environment": dict(self.environment),
            "sys_path": self.sys_path,
            "preload": self.preload,
        }


class ForkServer:
    """A running zygote; `spawn` may be called from several threads."""

    def __init__(self, config: ServerConfig) -> None:
        """Start the launcher and wait until its zygote serves.

        Raises:
            IsolationUnavailable: The namespaces or mounts cannot be made here.
        """
        self.base_id = _root_base() if os.geteuid() == 0 else None
        self.landlock_abi = config.landlock_abi
        self._host, launcher_end = channel.pair()
        self._control, zygote_end = channel.pair()
        self._spawning = threading.Lock()
        self._mounting = threading.Lock()
        with launcher_end, zygote_end:
            ends = (launcher_end.fileno(), zygote_end.fileno())
            boot = _BOOT.format(source=_SOURCE, a=ends[0], b=ends[1])
            self._process = subprocess.Popen(
                [config.executable, "-I", "-S", "-B", "-X", "utf8", "-c", boot],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=ends,
                cwd="/",
            )
        try:
            self._start(config)
        except BaseException:
            self.close()
            raise

    def _start(self, config: ServerConfig) -> None:
        for end in (self._host, self._control):
            end.settimeout(_ANSWER_SECONDS)
        channel.send(self._host, config.to_message(mapped_by_host=self.base_id is not None))
        if self.base_id is not None:
            self._expect(self._host, "unshared")
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{self._process.pid}/{kind}").write_text(f"0 {self.base_id} {identity.RANGE}")
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
        if "failed" in answer:
            raise IsolationUnavailable(f"the box cannot be built here: {answer['failed']}")
        if word not in answer:
            raise InternalError(f"the box's launcher said {answer} where {word!r} was due")

    def spawn(self, spec: dict[str, Any], fds: tuple[int, ...]) -> list[int]:
        """Build a box and fork its init with copies of `fds`; return a pidfd of it and its directory."""
        with self._spawning:
            channel.send(self._control, spec, fds)
            answer, received = channel.receive(self._control)
        if answer is None or answer.get("id") != spec["id"]:
            raise InternalError("the zygote is gone")
        if "failed" in answer:
            raise IsolationUnavailable(f"the box cannot be built here: {answer['failed']}")
        return received

    def open_work_directory(self, path: Path) -> int:
        """Return a detached read-only mount of a session's work directory."""
        if self.base_id is not None:
            # as root the launcher has become nobody; this process can do it itself
            return kernel.clone_tree(os.fsencode(path))
        with self._mounting:
            channel.send(self._host, {"path": str(path)})
            answer, received = channel.receive(self._host)
        if answer is None or "failed" in answer:
            raise InternalError(f"the session's work directory cannot be mounted: {answer and answer['failed']}")
        return received[0]

    def close(self) -> None:
        """End the zygote and every run that is still in it."""
        self._host.close()
        self._control.close()
        self._process.kill()
        self._process.wait()


def _root_base() -> int:
    base = identity.choose_base(Path("/proc/self/uid_map").read_text())
    if base is None:
        raise IsolationUnavailable(
            "running as root, but no range of 65536 unprivileged ids is mapped in this user namespace",
            fix="run Ringfence as an ordinary user here",
        )
    return base
