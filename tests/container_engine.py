"""A container engine of the tests' own, on a private socket and gone with them, and the image that they run in it.

Root starts a `dockerd` whose every file lies in a temporary directory: no engine of the machine is asked or touched. An
ordinary user takes the engine that lets them in, if one does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ringfence.images import archive, rootfs
from ringfence.images.recipe import import_changes

IMAGE = "ringfence-sandbox:tests"
_START_SECONDS = 60.0


class Engine:
    """An engine that runs; `url` is its address, which no other engine has."""

    def __init__(self, url: str, directory: Path | None = None, process: subprocess.Popen[bytes] | None = None) -> None:
        self.url = url
        self.directory = directory
        self.process = process

    def hang(self) -> None:
        """Have it answer nobody from now on, with every one of its threads; SIGCONT is the end of that."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def docker(self, *words: str, timeout: float = 50, **options: object) -> subprocess.CompletedProcess[str]:
        """Run the docker command against this engine to its end, and return it whatever its exit code."""
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            self.command(*words), capture_output=True, text=True, timeout=timeout, check=False, **options
        )

    def command(self, *words: str) -> list[str]:
        """Return the words that run the docker command against this engine."""
        return ["docker", "--host", self.url, *words]

    def load(self, tarball: Path, name: str, changes: list[str] | None = None) -> str:
        """Import a root file system as image `name`, with the sandbox's configuration unless told otherwise."""
        lines = import_changes({}) if changes is None else changes
        done = self.docker("import", *(f"--change={line}" for line in lines), str(tarball), name)
        assert done.returncode == 0, done.stderr
        return name

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        """End the daemon: SIGTERM as an administrator does, SIGKILL as a crash does. Its files stay."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(with_signal)
        self.process.wait(60)
        self._forget_containerd()

    def start(self, *options: str) -> None:
        """Start the daemon, for the first time or again on the same files, and wait until it answers."""
        assert self.directory is not None
        self.process = _start(self.directory, self.url, options)

    def _forget_containerd(self) -> None:
        """Wait for the daemon's own containerd, which ends with it, and remove what says that it still runs.

        Where pid 1 reaps nobody it stays a zombie, and the next daemon would take that for alive.
        """
        assert self.directory is not None
        written = self.directory / "run" / "containerd" / "containerd.pid"
        if not written.exists():
            return
        status = Path("/proc", written.read_text().strip(), "stat")
        until = time.monotonic() + _START_SECONDS
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            while status.read_text().rpartition(")")[2].split()[0] != "Z":
                assert time.monotonic() < until, "containerd outlives its daemon"
                time.sleep(0.05)
        written.unlink(missing_ok=True)


def missing() -> str | None:
    """Say why no test can have an engine with the image here, or None if they can."""
    return _missing()


@cache
def _missing() -> str | None:
    if shutil.which("docker") is None:
        return "docker is not installed"
    if os.geteuid() != 0 and subprocess.run(["docker", "version"], capture_output=True, check=False).returncode != 0:
        return "only root may start an engine, and none lets this user in"
    if os.geteuid() == 0 and shutil.which("dockerd") is None:
        return "dockerd is not installed"
    return image_missing()


@cache
def image_missing() -> str | None:
    """Say why there is no root file system to run things in, or None; `tools/sandbox-image` builds it."""
    if archive.find(rootfs.default_recipe(), archive.default_cache()) is not None:
        return None
    return rootfs.cannot_build() or "the sandbox image is not built; fix: tools/sandbox-image"


@cache
def sandbox_rootfs() -> Path:
    """Return the tar of the image's root file system; building it takes minutes, so `tools/test` does that first."""
    return rootfs.build(rootfs.default_recipe(), archive.default_cache()).path


@cache
def sandbox_image() -> str:
    """Return the name of the sandbox image in `engine()`."""
    return engine().load(sandbox_rootfs(), IMAGE)


@cache
def engine() -> Engine:
    """Return the engine of this test run, started when the first test asks for it; it ends with the run.

    Ask from the main thread: the daemon ends with the thread that started it, so that a killed run leaves none behind.
    """
    if os.geteuid() != 0:
        found = subprocess.run(
            ["docker", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"],
            capture_output=True,
            text=True,
            check=True,
        )
        return Engine(os.environ.get("DOCKER_HOST") or found.stdout.strip())
    running_until_exit = contextlib.ExitStack()
    atexit.register(running_until_exit.close)
    return running_until_exit.enter_context(running())


@contextlib.contextmanager
def running(*options: str, disk: str | None = None) -> Iterator[Engine]:
    """Start an engine beside `engine()`, for a test that stops it, fills it or changes its `options`.

    `disk` are the options of a file system in memory that its images and containers are to lie on.
    """
    directory = Path(tempfile.gettempdir(), f"rf-docker-{os.urandom(6).hex()}")  # also the name of a namespace
    directory.mkdir(mode=0o700)
    data = directory / "data"
    data.mkdir()
    if disk is not None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", disk, "tmpfs", str(data)], check=True)
    started = Engine(f"unix://{directory}/docker.sock", directory)
    try:
        started.start(*options)
        yield started
    finally:
        if started.process is not None:  # else it never ran, and why is already on its way
            started.stop()
        if disk is not None:
            subprocess.run(["umount", "--lazy", str(data)], check=True)
        shutil.rmtree(directory)


def _start(directory: Path, url: str, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
    runsc = shutil.which("runsc")
    command = [
        *("setpriv", "--pdeathsig", "TERM"),
        # Its mounts are its own: none is seen by the other tests, and none outlives it.
        *("unshare", "--mount", "--propagation", "slave"),
        *("dockerd", "--host", url, "--group=root"),
        *("--config-file", str(directory / "daemon.json"), "--pidfile", str(directory / "docker.pid")),
        *("--data-root", str(directory / "data"), "--exec-root", str(directory / "run")),
        # A containerd of the machine, where one runs, keeps what is ours apart from what is not.
        *(f"--containerd-namespace={directory.name}", f"--containerd-plugins-namespace={directory.name}-plugins"),
        *("--bridge=none", "--iptables=false", "--ip6tables=false", "--userland-proxy=false"),
        *options,
    ]
    gvisor = {"runsc": {"path": runsc, "runtimeArgs": ["--network=none", "--platform=ptrace"]}} if runsc else {}
    (directory / "daemon.json").write_text(json.dumps({"runtimes": gvisor}))
    log = directory / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/")
    until = time.monotonic() + _START_SECONDS
    while subprocess.run(["docker", "--host", url, "version"], capture_output=True, check=False).returncode != 0:
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            raise RuntimeError(f"dockerd did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)  # a condition is waited for, with a bound; docker has nothing that tells when it is ready
    return process
