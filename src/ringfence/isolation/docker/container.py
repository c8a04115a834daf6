"""One container of ours, from its start until the engine has removed it; and whoever sees to it that it does.

`docker run` stays in the foreground as long as its container is there, and with `--rm` until it is removed. So a
command that ends by itself is proof that nothing is left, and the engine need not be asked. A command that was killed,
or that lost its engine, proves nothing: then the engine is asked until it says that the container is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Final

from ringfence.dataclass import dataclass, field
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.engine import Engine

_log = logging.getLogger(__name__)
_REMOVAL_SECONDS: Final = 10.0
_LAST_WORDS_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 20.0
_MOST_WORDS: Final = 16384
_ENGINE_FAILED: Final = 125
"""What `docker run` exits with when it was the engine that failed, and not what ran in the container."""
_REFUSALS: Final = (_ENGINE_FAILED, 126, 127)


class Ended(Enum):
    """How a command ended that was to stay as long as its container."""

    REFUSED = auto()
    """The engine made no container, or could not start what was to run in it."""
    OTHERWISE = auto()
    NOT_YET = auto()


def launch(engine: Engine, argv: Sequence[str], name: str, directory: Path | None) -> Running:
    """Start a container in the foreground; `directory` goes when it is gone.

    Raises:
        IsolationUnavailable: The engine's command is not there.
    """
    complaints, inner_in, stdin, stdout, inner_out, silent, held = _open_ends()
    try:
        process = engine.attach(argv, inner_in, inner_out, complaints)
    except BaseException:
        _close_all((complaints, stdin, stdout, silent, held))
        raise
    finally:
        _close_all((inner_in, inner_out))
    return Running(name, engine, process, (stdin, stdout, silent), directory, [complaints, held])


def _open_ends() -> list[int]:
    """Open a file in memory and three pipes, or nothing."""
    opened: list[int] = []
    try:
        opened.append(os.memfd_create("complaints", os.MFD_CLOEXEC))
        for _ in range(3):
            opened += os.pipe()
    except OSError:
        _close_all(opened)
        raise
    return opened


def _close_all(descriptors: Iterable[int]) -> None:
    for fd in descriptors:
        os.close(fd)


@dataclass(slots=True)
class Running:
    """A container, the command attached to it, and what of the host is only there for it."""

    name: str
    engine: Engine
    process: subprocess.Popen[bytes]
    ends: tuple[int, int, int]
    """Our ends of its stream, for whoever speaks to it: in, out, and one on which nothing ever comes."""
    directory: Path | None
    """What is removed with it."""
    held: list[int]
    """The file that the command's complaints go to, and what else is closed with it."""
    born: float = field(default_factory=time.time)
    pids: tuple[int, int] = (0, 0)
    """Of its first process and of its worker, as this machine counts them; 0 where they are another's."""
    pidfd: int | None = None
    """Of its first process, where that is one of this machine's and may be killed from here."""
    is_parked: bool = False
    _killed: bool = field(default=False, init=False)

    def ended(self) -> Ended:
        """Wait a little for the command to end, and tell how it did."""
        try:
            code = self.process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            return Ended.NOT_YET
        return Ended.REFUSED if code in _REFUSALS else Ended.OTHERWISE

    def words(self) -> str:
        """Return what the command has complained about."""
        return os.pread(self.held[0], _MOST_WORDS, 0).decode("utf-8", "replace")

    def kill(self) -> None:
        """End everything in it, without asking the engine; never waits.

        While it starts this does nothing: whoever starts it still wants to hear how its command ends, and calls `end`.
        """
        if self.is_parked:
            self._kill()

    def _kill(self) -> None:
        if self.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            return
        # Its end of the stream ends with the command, and with the stream its init, and with that everything.
        self._killed = True
        self.process.kill()

    def end(self) -> None:
        """End everything in it, and let go of every descriptor of it."""
        self._kill()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None
        held, self.held = self.held, []
        _close_all(held)

    def died_of(self) -> str | None:
        """Say what the engine knows about a container that ended without a word."""
        # the engine's clock may be another machine's, a little beside ours
        ended = self.engine.ran_out_of_memory(self.name, self.born - 5, time.time() + 1)
        return "memory" if ended else None

    def is_removed(self) -> bool:
        """Whether the engine is known to have removed it; asks nobody."""
        return not self._killed and self.process.poll() not in (None, _ENGINE_FAILED) and self.process.returncode >= 0

    def bury(self) -> None:
        """Wait until the engine has removed it, and make it if it does not.

        Raises:
            IsolationUnavailable: The engine does not say that it is gone.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self._killed else _REMOVAL_SECONDS)
        if not self.is_removed():
            self._killed = True  # what the command says from here on is no longer proof
            self.process.kill()
            self.process.wait()
            self.engine.remove((self.name,))
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


class Undertaker:
    """Buries containers beside everything else, so that nobody who runs code waits for an engine to clean up."""

    def __init__(self, first: Callable[[], object]) -> None:
        """Do `first` when there is something to do at all, before anything else."""
        self._first = first
        self._pending: list[Running] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._refused = False

    def begin(self) -> None:
        """Start working, once."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ringfence-containers", daemon=True)
                self._thread.start()

    def take(self, dead: Running) -> None:
        """Take over a container whose run is over."""
        with self._changed:
            self._pending.append(dead)
            self._changed.notify_all()
        self.begin()

    def is_idle(self) -> bool:
        """Whether nothing waits to be buried but for an engine that does not answer."""
        with self._changed:
            return self._refused or not self._pending

    def close(self) -> None:
        """Wait until everything is buried, as long as there is an engine that answers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_LAST_SECONDS)

    def _work(self) -> None:
        with contextlib.suppress(IsolationUnavailable):  # whoever starts a container is told
            self._first()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                dead = self._pending[0]
            buried = self._bury(dead)
            with self._changed:
                self._pending.remove(dead)
                if not buried:
                    self._pending.append(dead)
                    self._refused = True
                    if self._closed:
                        _log.warning("the engine did not remove %s; the next start will", dead.name)
                        return
                    self._changed.wait(_RETRY_SECONDS)
                else:
                    self._refused = False

    def _bury(self, dead: Running) -> bool:
        try:
            dead.bury()
        except IsolationUnavailable as refusal:
            _log.warning("container %s is not removed yet: %s", dead.name, refusal)
            return False
        except Exception:  # noqa: BLE001  logged; one container must not keep the others from being buried
            _log.exception("container %s could not be buried", dead.name)
        return True
