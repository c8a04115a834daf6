"""What a service can say about where it runs: the kind of system, the Docker beside it, whether files can be made."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.paths.adapter import Roots, Side, adapt
from ringfence.paths.machine import ask_wslpath, this_side

if TYPE_CHECKING:
    from ringfence.service.settings import ServiceSettings

_PATIENCE: Final = 3.0
_REMEMBERED: Final = 30.0


def runtime_mode() -> str:
    """Return `linux`, `wsl` or `windows`: which of the settings' roots is meant."""
    return str(this_side())


def roots_of(settings: ServiceSettings) -> Roots:
    """Return the roots of the workspace as the settings have them, with `~` spelled out."""
    wsl, linux = (
        None if said is None else str(Path(said).expanduser())
        for said in (settings.workspace_root_wsl, settings.workspace_root)
    )
    return Roots(settings.workspace_root_win, wsl, linux)


def files_root(settings: ServiceSettings, side: Side | None = None) -> Path | None:
    """Return where the projects lie on this machine or on `side`, if that was said; else it is the home.

    Raises:
        InvalidRequest: It was said in another side's spelling, and nothing here translates it.
    """
    side, roots = side or this_side(), roots_of(settings)
    if roots == Roots() or (side is Side.LINUX and roots.linux is None):
        return None
    return Path(adapt(side, roots, ask_wslpath).host_path_native)


@dataclass(frozen=True, slots=True)
class Docker:
    """The Docker command of this machine and what it talks to; nothing where it does not answer."""

    cli_path: str | None = None
    version: str | None = None
    context: str | None = None


class DockerWatch:
    """Asks the Docker command now and then; an answer is remembered, so that looking often costs nothing."""

    def __init__(self) -> None:
        """Nothing is asked yet."""
        # protects what is remembered: one asks, the others wait for the answer
        self._lock = threading.Lock()
        self._seen = Docker()
        self._at = float("-inf")
        self._asked: tuple[tuple[str, ...], str | None] = ((), None)

    def look(self, command: tuple[str, ...] = ("docker",), url: str | None = None) -> Docker:
        """Return what is there, of the engine that `command` reaches; may block for some seconds."""
        with self._lock:
            if time.monotonic() - self._at > _REMEMBERED or self._asked != (command, url):
                self._seen, self._at, self._asked = _look(command, url), time.monotonic(), (command, url)
            return self._seen


def is_writable(root: Path) -> str | None:
    """Return why no file can be made in the workspace's root, or nothing where one can; leaves nothing behind."""
    where = root
    while not where.exists() and where != where.parent:
        where = where.parent  # it is made with the first project
    try:
        # with O_TMPFILE nothing is ever there under a name; not every file system has it
        fd = os.open(where, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)
        return None
    except OSError as error:
        if error.errno not in _NO_TMPFILE:
            return error.strerror or "it cannot be written"
    return None if os.access(where, os.W_OK | os.X_OK, effective_ids=True) else "it may not be written"


def _look(command: tuple[str, ...], url: str | None) -> Docker:
    cli = shutil.which(command[0])
    if cli is None:
        return Docker()
    words = (cli, *command[1:])
    at = words if url is None else (*words, "--host", url)
    return Docker(cli, _said(*at, "version", "--format", "{{.Server.Version}}"), _said(*words, "context", "show"))


def _said(*command: str) -> str | None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, check=True, text=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()[:200] or None


_NO_TMPFILE: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
