"""What is put up on the host for probes to reach: a secret, doors that note every visitor, a process to be found."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ringfence.dataclass import dataclass, field

SECRET_VARIABLE: Final = "RINGFENCE_SELFTEST_SECRET"  # noqa: S105  it is the name
_BYSTANDER: Final = "import sys; sys.stdin.read()"


@dataclass(slots=True)
class Stage:
    """The host's side of the attempts."""

    directory: Path
    """A directory of the host in which anybody may write."""
    secret: str
    port: int
    abstract: str
    bystander: int
    visits: list[str] = field(default_factory=list)

    def given(self, numbers: dict[str, int]) -> dict[str, Any]:
        """Return what every probe is told: an attacker knows where things are."""
        return {
            "secret": self.secret,
            "secret_path": str(self.directory / "secret"),
            "directory": str(self.directory),
            "socket_path": str(self.directory / "socket"),
            "abstract": self.abstract,
            "port": self.port,
            "pid": self.bystander,
            "numbers": numbers,
        }

    def noticed(self) -> tuple[str, ...]:
        """Return what the host saw of a probe since it was last asked, and put everything back."""
        seen, self.visits = self.visits, []
        for left in self.directory.glob("left-*"):
            seen.append(f"a file was made at {left}")
            left.unlink()
        for pid, words in _processes():
            if self.secret.encode() in words and pid not in (self.bystander, os.getpid()):
                seen.append(f"process {pid} of it is still there")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
        return tuple(dict.fromkeys(seen))


@contextmanager
def stage() -> Iterator[Stage]:
    """Put it all up, and take it down again."""
    secret = f"secret-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as last:
        directory = Path(last.enter_context(tempfile.TemporaryDirectory(prefix="ringfence-selftest-")))
        directory.chmod(0o777)
        (directory / "secret").write_text(secret)
        bystander = subprocess.Popen(
            [sys.executable, "-I", "-c", _BYSTANDER, secret],
            stdin=subprocess.PIPE,
            env={SECRET_VARIABLE: secret},
        )
        last.callback(_end, bystander)
        os.environ[SECRET_VARIABLE] = secret
        last.callback(os.environ.pop, SECRET_VARIABLE, None)
        tcp = last.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"ringfence-selftest-{secrets.token_hex(8)}"
        made = Stage(directory, secret, tcp.getsockname()[1], abstract, bystander.pid)
        for name, listener in (
            ("the host's loopback", tcp),
            ("an abstract socket of the host", last.enter_context(_unix(f"\0{abstract}"))),
            ("a socket file of the host", last.enter_context(_unix(str(directory / "socket")))),
        ):
            thread = threading.Thread(target=_attend, args=(listener, name, made), daemon=True)
            thread.start()
            last.callback(_shut, listener, thread)
        yield made


def _unix(address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(address)
    if not address.startswith("\0"):
        Path(address).chmod(0o777)
    made.listen()
    return made


def _attend(listener: socket.socket, name: str, noted: Stage) -> None:
    while True:
        try:
            visitor, _ = listener.accept()
        except OSError:
            return
        with visitor:
            noted.visits.append(f"{name} was reached")
            with contextlib.suppress(OSError):
                visitor.sendall(noted.secret.encode())


def _shut(listener: socket.socket, thread: threading.Thread) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _processes() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "cmdline").read_bytes()
