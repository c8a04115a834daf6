"""Which `runsc` this machine has: found once, asked for its age and its options, and refused in one line."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable

OLDEST: Final = 20221219
"""The release of Debian 12, and the oldest that the boxes of this package were tried with."""

_SEARCHED: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_SECONDS: Final = 20.0
_VERSION: Final = re.compile(r"^runsc version \D*?(?:\d+\.\d+~)?(\d{8})\b", re.MULTILINE)
# what a release has of these is closed: a way to the host's sockets and fifos, to its files past the file server, and
# the options that a bundle could set; a release that lacks one lacks also what it would close
_CLOSING: Final = {
    "host-uds": "none",
    "host-fifo": "none",
    "directfs": "false",
    "overlay2": "none",
    "allow-flag-override": "false",
    "net-raw": "false",
}
_INSTALL: Final = "apt-get install runsc, or see https://gvisor.dev/docs/user_guide/install"


@dataclass(frozen=True, slots=True)
class Runsc:
    """One program, and what it can do."""

    path: str
    version: int
    """The day of its release, such as 20221219."""
    flags: frozenset[str]
    platform: str

    def closing_flags(self) -> tuple[str, ...]:
        """Return the options that shut what a box must not have, as far as this release knows them."""
        return tuple(f"--{name}={value}" for name, value in _CLOSING.items() if name in self.flags)


def find(path: str | None = None) -> Runsc:
    """Return the machine's `runsc`.

    Raises:
        IsolationUnavailable: There is none, it is too old, or it does not run.
    """
    found = shutil.which("runsc", path=_SEARCHED) if path is None else path
    if found is None:
        raise IsolationUnavailable("gVisor's runsc is not installed", fix=_INSTALL)
    return ask(found)


@lru_cache(maxsize=4)
def ask(path: str) -> Runsc:
    """Return what the program at `path` says of itself."""
    version = read_version(_say(path, "--version"))
    if version is None:
        raise IsolationUnavailable(f"{path} does not say which release of gVisor it is", fix=_INSTALL)
    if version < OLDEST:
        raise IsolationUnavailable(
            f"{path} is of {version}, older than {OLDEST}, the oldest that is known to hold", fix=_INSTALL
        )
    text = _say(path, "flags")
    return Runsc(path, version, read_flags(text), read_platform(text))


def read_version(text: str) -> int | None:
    """Return the day of a release from what `runsc --version` prints."""
    found = _VERSION.search(text)
    return int(found[1]) if found else None


def read_flags(text: str) -> frozenset[str]:
    """Return the names of the options that `runsc flags` lists."""
    return frozenset(re.findall(r"^ +-([\w-]+)", text, re.MULTILINE))


def read_platform(text: str) -> str:
    """Return how guests are run: systrap where there is it, else ptrace; never kvm, which opens this kernel to them."""
    described = re.search(r"^ +-platform .*\n(.*)$", text, re.MULTILINE)
    return "systrap" if described and "systrap" in described[1] else "ptrace"


def _say(path: str, word: str) -> str:
    try:
        done = subprocess.run(
            [path, word],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IsolationUnavailable(f"{path} does not run: {error}", fix=_INSTALL) from error
    return done.stdout + done.stderr
