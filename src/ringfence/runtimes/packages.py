"""Build a package environment once, under a name that says what is in it, to be mounted read-only in the box."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from ringfence.dataclass import dataclass
from ringfence.errors import InternalError, InvalidRequest, Unavailable
from ringfence.runtimes.installer import Client, compile_command, explain, find_client, install_command, run
from ringfence.runtimes.places import BOX_PACKAGES
from ringfence.runtimes.requirements import environment_key, normalise

BUILD_SECONDS = 900.0

_MANIFEST = "manifest.json"
_TREE = "packages"
_WORKSHOP = ".build-"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Package:
    """One installed distribution; `record` is the sha256 of its own list of files."""

    name: str
    version: str
    record: str


@dataclass(frozen=True, slots=True)
class Environment:
    """A finished environment: `path` is the tree to mount at `BOX_PACKAGES`, `digest` is over every file in it."""

    path: Path
    key: str
    requirements: tuple[str, ...]
    packages: tuple[Package, ...]
    python_tag: str
    digest: str


def python_tag() -> str:
    """Name the kind of interpreter wheels are chosen for: implementation, version, machine, C library."""
    libc, _version = platform.libc_ver()
    # `EXT_SUFFIX` tells a debug or free-threaded build apart, which load other extension modules.
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ""
    return f"{sys.implementation.cache_tag}-{platform.machine()}-{libc or 'musl'}{suffix}"


def build(
    requirements: Sequence[str],
    store: Path,
    python: Path,
    *,
    client: Client | None = None,
    timeout: float = BUILD_SECONDS,
    on_progress: Progress | None = None,
) -> Environment:
    """Return the environment for `requirements`, building it in `store` unless it is there already.

    `python` is the base interpreter of this process. Of several builders of one environment, in any
    process, one builds and the others wait for it.

    Raises:
        InvalidRequest: A requirement is not allowed, does not exist, or has no wheel.
        Unavailable: No package client, no way to the index, or no room in the store.
    """
    wanted = normalise(requirements)
    if not wanted:
        raise InvalidRequest("packages: nothing to build", reason="invalid_package")
    key = environment_key(wanted, python_tag())
    if (ready := find(store, key)) is not None:
        return ready
    say = on_progress or (lambda _text: None)
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        store.chmod(0o700)
        with _only_builder(store, key, say) as lock:
            if (ready := find(store, key)) is not None:
                return ready
            _build(wanted, store, key, python, client or find_client(), timeout, lock, say)
    except OSError as error:
        raise Unavailable(
            f"the package store {store} is not usable: {error}", reason="package_store_unwritable"
        ) from error
    finished = find(store, key)
    if finished is None:
        raise InternalError("a package environment vanished right after it was built")
    return finished


def find(store: Path, key: str) -> Environment | None:
    """Return the finished environment called `key`, or None when it is missing, partial or not what it says.

    Cheap: reads the manifest and one directory. `verify` reads every file.
    """
    home = store / key
    try:
        manifest = json.loads((home / _MANIFEST).read_bytes())
        environment = Environment(
            path=home / _TREE,
            key=manifest["key"],
            requirements=tuple(manifest["requirements"]),
            packages=tuple(Package(**package) for package in manifest["packages"]),
            python_tag=manifest["python_tag"],
            digest=manifest["digest"],
        )
        top = manifest["top"]
        whole = _names(environment.path) == top and environment.key == key
    except (OSError, ValueError, KeyError, TypeError):
        return None
    expected = environment_key(environment.requirements, environment.python_tag)
    return environment if whole and expected == key else None


def sweep(store: Path) -> None:
    """Remove what builders that were killed left in `store`; a build under way is not touched."""
    for leftover in store.glob(f"{_WORKSHOP}*"):
        key = leftover.name.removeprefix(_WORKSHOP).partition("-")[0]
        lock = _try_lock(store, key)
        if lock is not None:
            shutil.rmtree(leftover, ignore_errors=True)
            _lock_path(store, key).unlink(missing_ok=True)
            os.close(lock)


def verify(environment: Environment) -> bool:
    """Say whether every file of `environment` is as it was built; reads them all."""
    try:
        return tree_digest(environment.path) == environment.digest
    except (OSError, InvalidRequest):
        return False


def tree_digest(tree: Path) -> str:
    """Return one sha256 over the name, mode and content of everything below `tree`.

    Raises:
        InvalidRequest: Something there is neither a directory nor a regular file.
    """
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*")):
        status = path.lstat()
        kind = "d" if stat.S_ISDIR(status.st_mode) else "f"
        content = ""
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif kind == "f":
            raise InvalidRequest(f"a wheel brought {path.name!r}, which is not a file", reason="invalid_package")
        name = os.fsencode(path.relative_to(tree))
        digest.update(b"%s %o %s %d:%s\n" % (kind.encode(), status.st_mode & 0o7777, content.encode(), len(name), name))
    return digest.hexdigest()


@contextmanager
def _only_builder(store: Path, key: str, say: Progress) -> Iterator[int]:
    lock = _try_lock(store, key)
    if lock is None:
        say("waiting for another process that builds the same packages")
        while lock is None:
            lock = _try_lock(store, key, wait=True)
    try:
        yield lock
    finally:
        _lock_path(store, key).unlink(missing_ok=True)  # while still held, so that nobody locks a file on its way out
        os.close(lock)


def _try_lock(store: Path, key: str, *, wait: bool = False) -> int | None:
    path = _lock_path(store, key)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # The builder before us unlinks the file it held: only a lock on the file of that name counts.
        if os.fstat(lock).st_ino == path.stat().st_ino:
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _lock_path(store: Path, key: str) -> Path:
    return store / f".{key}.lock"


def _build(
    wanted: tuple[str, ...],
    store: Path,
    key: str,
    python: Path,
    client: Client,
    timeout: float,
    lock: int,
    say: Progress,
) -> None:
    # We hold the lock of this key, so what lies here is from a builder that was killed, or was tampered with.
    for leftover in (*store.glob(f"{_WORKSHOP}{key}-*"), store / key):
        if leftover.exists():
            shutil.rmtree(leftover)
    workshop = Path(tempfile.mkdtemp(prefix=f"{_WORKSHOP}{key}-", dir=store))
    try:
        # The working directory is empty and ours: a uv.toml or a wheel an agent left in the application's is not read.
        home, cwd = workshop / "home", workshop / "cwd"
        tree = home / _TREE
        home.mkdir()
        cwd.mkdir()
        say(f"installing {', '.join(wanted)} with {client.name}")
        log = workshop / "log"
        done = run(install_command(client, wanted, tree, python, log), cwd, timeout, [lock])
        if done.returncode != 0:
            raise explain(wanted, done.stdout + done.stderr, log.read_text(errors="replace") if log.exists() else "")
        (tree / ".lock").unlink(missing_ok=True)  # uv's own
        say("compiling")
        run(
            compile_command(python, tree, BOX_PACKAGES), cwd, timeout, [lock]
        )  # a file that does not compile stays source
        _seal(home, key, wanted)
        os.rename(home, store / key)  # noqa: PTH104 - the one step that makes it exist
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _seal(home: Path, key: str, wanted: tuple[str, ...]) -> None:
    tree = home / _TREE
    _open_to_guests(home)
    manifest = {
        "key": key,
        "requirements": wanted,
        "python_tag": python_tag(),
        "packages": [_describe(found) for found in _distributions(tree)],
        "top": _names(tree),
        "digest": tree_digest(tree),
    }
    path = home / _MANIFEST
    path.write_text(json.dumps(manifest, indent=1))
    path.chmod(0o644)
    _flush(home)


def _open_to_guests(home: Path) -> None:
    """Give every file a plain mode: readable under the guest's uid, never set-uid."""
    home.chmod(0o755)
    for path in home.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            path.chmod(0o755)
        elif stat.S_ISREG(mode):
            path.chmod(0o755 if mode & 0o111 else 0o644)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def _distributions(tree: Path) -> list[metadata.Distribution]:
    return sorted(metadata.distributions(path=[str(tree)]), key=lambda found: found.metadata["Name"].lower())


def _describe(found: metadata.Distribution) -> dict[str, str]:
    record = hashlib.sha256((found.read_text("RECORD") or "").encode()).hexdigest()
    return {"name": found.metadata["Name"], "version": found.version, "record": record}


def _flush(home: Path) -> None:
    # On disk before the rename says it is there: otherwise a power cut leaves a finished name on empty files.
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None, use_errno=True).syncfs(directory)
    finally:
        os.close(directory)
