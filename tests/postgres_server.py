"""A private PostgreSQL server for the tests: on a socket in a directory of its own, gone with them."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # no test pulls its plug
    "max_connections": "60",
    "shared_buffers": "16MB",
    "log_min_messages": "fatal",
    "autovacuum": "off",
}


def programs() -> Path | None:
    """Return where `initdb` and `postgres` of the newest installed release are."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found and (initdb := shutil.which("initdb")):
        return Path(initdb).parent
    return max(found, key=lambda path: float(path.parent.name), default=None)


class PostgresServer:
    """A server that runs; every test has a database of its own in it."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory = directory
        self.process = process
        self._numbers = itertools.count(1)

    def url(self, name: str) -> str:
        return f"postgresql://ringfence@/{name}?host={self.directory}"

    def new_database(self) -> str:
        """Return the address of an empty database."""
        name = f"test{next(self._numbers)}"
        self.command(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database with whoever is still in it: all of them at the end would keep the last test waiting."""
        self.command(f"DROP DATABASE {url.partition('@/')[2].partition('?')[0]} WITH (FORCE)")

    def command(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def running(settings: dict[str, str] | None = None) -> Iterator[PostgresServer]:
    """Start a server, and end it."""
    found = programs()
    assert found is not None
    directory = Path(tempfile.mkdtemp(prefix="rf-pg-"))
    as_user = _unprivileged(directory)
    try:
        made: list[str | Path] = [
            found / "initdb",
            "-D",
            directory / "data",
            "-U",
            "ringfence",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        subprocess.run([*as_user, *made, "--locale=C"], check=True, capture_output=True, cwd="/")
        process = start(directory, settings)
        try:
            yield PostgresServer(directory, process)
        finally:
            stop(process)
    finally:
        shutil.rmtree(directory)


def start(directory: Path, settings: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start the server whose data are in `directory`, and wait until it answers."""
    import psycopg

    found = programs()
    assert found is not None
    options = [f"--{name}={value}" for name, value in (_SETTINGS | (settings or {})).items()]
    command: list[str | Path] = [
        *_unprivileged(directory),
        found / "postgres",
        "-D",
        directory / "data",
        "-k",
        directory,
        *options,
    ]
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/")
    address = f"postgresql://ringfence@/postgres?host={directory}"
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if process.poll() is not None:
                raise RuntimeError(log.read_text()) from None
        else:
            return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server as one that is shut down in a hurry: its sessions are cut off."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait()


def _unprivileged(directory: Path) -> list[str]:
    """Return what makes a command run as an ordinary user and end with this process; the directory becomes that user's.

    The server refuses to be root's.
    """
    if os.geteuid() != 0:
        return ["setpriv", "--pdeathsig", "INT"]
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        user = pwd.getpwnam("nobody")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig", "INT"]
