"""Make the sandbox's root file system from Debian's signed packages: no registry, no engine, nothing trusted but them.

Two things are kept: the packages, so that a new recipe downloads only what is new, and the finished archive.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ringfence.errors import IsolationUnavailable, Unavailable
from ringfence.images import archive as archives
from ringfence.images.archive import Archive
from ringfence.images.recipe import KEYRING, SUITES, Recipe, build_command
from ringfence.images.wheels import unpack
from ringfence.private_files import private_directory

BUILD_SECONDS = 1800.0

_PROXY = re.compile(r"Acquire::[a-z]+::Proxy\b", re.IGNORECASE)

Progress = Callable[[str], None]


def default_recipe() -> Recipe:
    """Return the recipe of the shipped image."""
    return Recipe(requirements=archives.context_file("requirements.txt").read_text())


def cannot_build() -> str | None:
    """Say why no root file system can be made here by this user, or None."""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed; fix: apt-get install mmdebstrap"
    if not KEYRING.is_file():
        return "Debian's archive keys are not installed; fix: apt-get install debian-archive-keyring"
    if os.geteuid() != 0 and not _has_subordinate_ids():
        return "an ordinary user needs newuidmap and subordinate ids to own an image's files; fix: build it as root"
    return None


def build(recipe: Recipe, cache: Path, *, fresh: bool = False, on_progress: Progress = lambda _: None) -> Archive:
    """Return the archive of `recipe`, made in `cache` unless it is there and unchanged; `fresh` makes it anyway.

    Of several builders of one recipe, in any process, one builds and the others wait for it.

    Raises:
        IsolationUnavailable: This machine or this user cannot build one, and what would change that.
        Unavailable: Debian's packages could not be had, or the disk is full.
    """
    with _turn(cache):
        found = None if fresh else archives.find(recipe, cache)
        if found is not None:
            return found
        if reason := cannot_build():
            message, _, fix = reason.partition("; fix: ")
            raise IsolationUnavailable(f"cannot make the sandbox image: {message}", fix=fix)
        on_progress(f"making the sandbox image from Debian {recipe.suite} (about two minutes, once)")
        return _build(recipe, cache)


def _build(recipe: Recipe, cache: Path) -> Archive:
    entrypoint = archives.context_file("entrypoint.sh")
    debs = cache / "debs"
    debs.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=cache) as workshop:
        draft = Path(workshop) / "rootfs.tar"
        command = build_command(
            recipe,
            draft,
            mode="root" if os.geteuid() == 0 else "unshare",
            debs=debs,
            entrypoint=entrypoint,
            apt=_proxies(),
            wheels=unpack(recipe.requirements, SUITES[recipe.suite], Path(workshop)) if recipe.requirements else None,
        )
        _run(command)
        built_at = int(time.time())
        kept = cache / f".{draft.name}"
        draft.replace(kept)
        return archives.keep(
            kept,
            recipe,
            recipe.digest(entrypoint.read_bytes()),
            architecture=platform.machine(),
            built_at=built_at,
        )


def _proxies() -> list[str]:
    """Return what apt on this machine is told about proxies, which the image is not to be told."""
    apt_config = shutil.which("apt-config")
    if apt_config is None:
        return []
    said = subprocess.run([apt_config, "dump", "Acquire"], capture_output=True, text=True, check=False).stdout
    return [line.rstrip(";") for line in said.splitlines() if _PROXY.match(line)]


def _run(command: list[str]) -> None:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable("making the sandbox image took longer than half an hour", fix="try again") from error
    if ended.returncode != 0:
        said = [line for line in ended.stderr.splitlines() if line.startswith("E:")] or ended.stderr.splitlines()[-1:]
        raise Unavailable(
            f"mmdebstrap could not make the sandbox image: {' '.join(said)[:500]}",
            fix="see what it says; the packages come from Debian's mirrors, or from --mirror",
        )


@contextmanager
def _turn(cache: Path) -> Iterator[None]:
    with private_directory(cache, make=True) as directory:
        lock = os.open(".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _has_subordinate_ids() -> bool:
    if shutil.which("newuidmap") is None:
        return False
    trial = ["unshare", "--map-auto", "--map-root-user", "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0
