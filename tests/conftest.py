"""What every test may ask of this machine, and how the suite says what it could not try here."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from tests import aio_client, container_engine, egress_lab, mcp_programs, net_lab, ordinary_user, postgres_server

from ringfence.browser.chromium import find_chromium
from ringfence.database.address import open_database
from ringfence.database.port import WAIT_SECONDS, Database
from ringfence.errors import IsolationUnavailable, Unavailable
from ringfence.images.archive import default_cache
from ringfence.images.rootfs import cannot_build
from ringfence.isolation.gvisor import runsc

SOAK = bool(os.environ.get("RINGFENCE_SOAK"))
SOAK_FACTOR = 20

# Begun in the background or by nohup, this process ignores them, and so would every program that a test interrupts.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

# No deadline: this suite makes no claim about wall-clock time.
settings.register_profile("test", deadline=None)
settings.register_profile("soak", deadline=None, max_examples=100 * SOAK_FACTOR)
settings.load_profile("soak" if SOAK else "test")


@pytest.fixture(scope="session", autouse=True)
def a_home_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the tests leave out of the evidence of whoever runs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RINGFENCE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def count() -> Callable[[int], int]:
    """Scale a soak count: all of it under `make soak`, a twentieth otherwise."""
    return lambda n: n if SOAK else max(1, n // SOAK_FACTOR)


# --- databases ---


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.PostgresServer]:
    """Start a private PostgreSQL server, for all tests that ask for one."""
    with postgres_server.running() as server:
        yield server


# --- containers ---


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[container_engine.Engine]:
    """Give every `isolation="docker"` from here on the tests' own engine and image."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RINGFENCE_DOCKER_URL", container_engine.engine().url)
        patched.setenv("RINGFENCE_DOCKER_IMAGE", container_engine.sandbox_image())
        yield container_engine.engine()


@pytest.fixture(scope="session")
def gvisor_image() -> Iterator[None]:
    """Have the image that every `isolation="gvisor"` needs, also in an application with another home directory."""
    container_engine.sandbox_rootfs()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(default_cache().parents[1]))
        yield


class Databases:
    """The one database of a test, opened as often as it is asked for: each time as another process would."""

    def __init__(self, home: Path, url: str | None) -> None:
        self.home, self.url = home, url
        self._opened: list[Database] = []

    def open(self, *, wait_seconds: float = WAIT_SECONDS) -> Database:
        database = open_database(self.home, self.url, wait_seconds=wait_seconds)
        self._opened.append(database)
        return database

    def close(self) -> None:
        for database in self._opened:
            database.close()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.needs("postgres"))])
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Databases]:
    """Give the test a new database on each of the engines."""
    url = None
    if request.param == "postgres":
        url = request.getfixturevalue("postgres").new_database()
    opened = Databases(tmp_path, url)
    yield opened
    opened.close()
    if url is not None:
        request.getfixturevalue("postgres").drop(url)


# --- what a test needs: each check returns why it cannot be had, or None ---


def _native() -> str | None:
    try:
        report = import_module("ringfence.isolation.native.probe").probe()
    except ModuleNotFoundError as error:
        return str(error)
    return None if report.available else str(report.reason)


def _bwrap() -> str | None:
    return None if shutil.which("bwrap") else "bwrap is not installed"


def _gvisor() -> str | None:
    try:
        runsc.find()
    except IsolationUnavailable as error:
        return str(error)
    return cannot_build()


def _node() -> str | None:
    try:
        node = import_module("ringfence.runtimes.node").find_node()
    except ModuleNotFoundError as error:
        return str(error)
    return None if node is not None else "no Node that is new enough"


def _user() -> str | None:
    return None if os.geteuid() != 0 else "this run is root's"


def _root() -> str | None:
    return None if os.geteuid() == 0 else "this run is an ordinary user's"


def _biscuit() -> str | None:
    return None if find_spec("biscuit_auth") else "biscuit-python is not installed; it has no wheel for Python 3.14"


def _postgres() -> str | None:
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    return None if postgres_server.programs() else "PostgreSQL is not installed"


def _docker() -> str | None:
    return container_engine.missing()


def _system_python() -> str | None:
    try:
        import_module("ringfence.isolation.docker.carried").carried_python()
    except IsolationUnavailable as error:
        return str(error)
    return None


def _podman() -> str | None:
    return None if shutil.which("podman") else "podman is not installed"


def _ordinary_user() -> str | None:
    return ordinary_user.missing()


def _rootlesskit() -> str | None:
    return None if shutil.which("rootlesskit") else "rootlesskit is not installed"


def _sshd() -> str | None:
    absent = not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None
    return "openssh-server or openssh-client is not installed" if absent else None


def _mcp_suites() -> str | None:
    return mcp_programs.missing()


def _aio_sdk() -> str | None:
    return aio_client.missing()


def _btrfs() -> str | None:
    if os.geteuid() != 0:
        return "only root may mount one"
    return None if shutil.which("mkfs.btrfs") else "btrfs-progs is not installed"


def _egress_lab() -> str | None:
    return egress_lab.missing()


def _net_lab() -> str | None:
    return net_lab.missing()


def _systemd() -> str | None:
    return None if shutil.which("systemd-analyze") else "systemd is not installed"


def _gcc() -> str | None:
    return None if shutil.which("gcc") else "gcc is not installed"


def _browser() -> str | None:
    if find_spec("playwright") is None:
        return "playwright is not installed"
    try:
        find_chromium()
    except Unavailable as error:
        return str(error)
    return None


CHECKS = {
    "native": _native,
    "bwrap": _bwrap,
    "docker": _docker,
    "podman": _podman,
    "ordinary_user": _ordinary_user,
    "rootlesskit": _rootlesskit,
    "sshd": _sshd,
    "system_python": _system_python,
    "gvisor": _gvisor,
    "node": _node,
    "user": _user,
    "root": _root,
    "biscuit": _biscuit,
    "postgres": _postgres,
    "mcp_suites": _mcp_suites,
    "aio_sdk": _aio_sdk,
    "btrfs": _btrfs,
    "gcc": _gcc,
    "browser": _browser,
    "egress_lab": _egress_lab,
    "net_lab": _net_lab,
    "systemd": _systemd,
}


@cache
def missing(what: str) -> str | None:
    """Say why `what` cannot be had on this machine, or None if it can."""
    return CHECKS[what]()


def required() -> frozenset[str]:
    """Name what this run may not do without.

    A run as root that is followed by one as an ordinary user (`tools/test` promises it) leaves the tests of an ordinary
    user to the second; the second has no engine where none lets that user in, and root's run had one.
    """
    names = {name.strip() for name in os.environ.get("RINGFENCE_REQUIRE", "").split(",")} - {""}
    if os.environ.get("RINGFENCE_USER_RUN") == "follows":
        names.discard("user")
    if os.environ.get("RINGFENCE_USER_RUN") == "second":
        names -= {"docker", "gvisor", "egress_lab"}
    return frozenset(names)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a requirement nobody can check, before a single test runs."""
    unknown = required() - CHECKS.keys()
    if unknown:
        raise pytest.UsageError(f"RINGFENCE_REQUIRE: unknown {', '.join(sorted(unknown))}; known: {', '.join(CHECKS)}")
    config.stash[_SKIPPED] = {}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose needs are not met here, or fail it where they are required."""
    for mark in item.iter_markers("needs"):
        for what in mark.args:
            if what not in CHECKS:
                pytest.fail(f"needs({what!r}): known are {', '.join(CHECKS)}", pytrace=False)
            reason = missing(what)
            if reason is None:
                continue
            if what in required():
                pytest.fail(f"needs {what}, which RINGFENCE_REQUIRE requires: {reason}", pytrace=False)
            item.config.stash[_SKIPPED].setdefault((what, reason), []).append(item.nodeid)
            pytest.skip(f"needs {what}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List what could not run on this machine, and why."""
    skipped = config.stash[_SKIPPED]
    if not skipped:
        return
    terminalreporter.section("could not run on this machine")
    for (what, reason), tests in sorted(skipped.items()):
        terminalreporter.write_line(f"{what}: {reason} (tests: {len(tests)})")
        for test in tests:
            terminalreporter.write_line(f"    {test}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test to its end in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


_SKIPPED = pytest.StashKey[dict[tuple[str, str], list[str]]]()
