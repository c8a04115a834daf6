"""A user of the tests' own, with ids below it, for engines that need no root: nothing of the machine is changed.

Its name and its ids are in files that lie over those of the machine in a mount namespace that ends with each command.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ringfence

UID, FIRST, COUNT = 64_123, 6_400_000, 65_536
_NAME = "rf-tests"
_SOURCE = Path(ringfence.__file__).parents[1]
_ENTER = """
set -e
for file in passwd subuid subgid; do mount --bind "$1/$file" /etc/$file; done
mount --bind "$2" "$1/src"
cd "$1/home"; shift 2
exec setpriv --reuid %(uid)d --regid %(uid)d --clear-groups --inh-caps=-all --pdeathsig TERM "$@"
"""
_START_SECONDS = 60.0


class OrdinaryUser:
    """Runs commands as that user; `environment` is all they have."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.home, self.run_directory = directory, directory / "home", directory / "run"
        directory.chmod(0o755)
        for made in (self.home, self.run_directory):
            made.mkdir(mode=0o700)
            os.chown(made, UID, UID)
        (directory / "src").mkdir()
        entry = f"{_NAME}:x:{UID}:{UID}::{self.home}:/bin/sh\n"
        (directory / "passwd").write_text(Path("/etc/passwd").read_text() + entry)
        for name in ("subuid", "subgid"):
            (directory / name).write_text(f"{_NAME}:{FIRST}:{COUNT}\n")
        self.environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.run_directory),
            "PYTHONPATH": str(directory / "src"),
            "RINGFENCE_HOME": str(self.home / "ringfence"),
        }

    def words(self, *command: str) -> list[str]:
        """Return the words that run `command` as the user."""
        enter = ["sh", "-c", _ENTER % {"uid": UID}, "sh", str(self.directory), str(_SOURCE)]
        return ["unshare", "--mount", "--propagation", "slave", *enter, *command]

    def run(self, *command: str, stdin: Any = subprocess.DEVNULL) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.words(*command),
            stdin=stdin,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def told(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Return the one JSON object that Ringfence's command printed."""
        done = self.run("/usr/bin/python3", "-m", "ringfence", *words)
        assert done.returncode == code, (done.stdout, done.stderr)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


@contextlib.contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Have the user for as long as the block takes, and remove what it made."""
    directory = Path(tempfile.mkdtemp(prefix="rf-user-"))
    try:
        yield OrdinaryUser(directory)
    finally:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[4].startswith(f"{directory}/"):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def rootless_dockerd(user: OrdinaryUser) -> Iterator[str]:
    """Run a rootless Docker engine for the user, and give its address; it has no network to give to anybody."""
    url = f"unix://{user.run_directory}/docker.sock"
    # what `dockerd-rootless.sh` does, without the network it would set up
    clear = 'rm -f /run/docker /run/containerd /run/xtables.lock; exec "$@"'
    command = [
        *("rootlesskit", f"--state-dir={user.run_directory}/rootlesskit", "--net=host"),
        *("--copy-up=/etc", "--copy-up=/run", "sh", "-c", clear, "sh"),
        *("dockerd", "--rootless", "--host", url, "--storage-driver=overlay2"),
        *("--bridge=none", "--iptables=false", "--ip6tables=false", "--userland-proxy=false"),
        *("--data-root", f"{user.home}/docker", "--exec-root", f"{user.run_directory}/docker"),
        *("--pidfile", f"{user.run_directory}/docker.pid"),
    ]
    log = user.directory / "dockerd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            user.words(*command), env=user.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        until = time.monotonic() + _START_SECONDS
        while subprocess.run(["docker", "--host", url, "version"], capture_output=True, check=False).returncode:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"dockerd did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)  # a condition is waited for, with a bound
        yield url
    finally:
        process.terminate()
        process.wait(60)


def missing() -> str | None:
    """Say why there can be no such user here."""
    if os.geteuid() != 0:
        return "only root can become another user"
    absent = [name for name in ("newuidmap", "setpriv", "unshare") if shutil.which(name) is None]
    return f"{', '.join(absent)} is not installed" if absent else None
