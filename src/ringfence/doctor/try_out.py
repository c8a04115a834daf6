"""Finds out by doing: calls the kernel, starts the tools, and reports what happened rather than what is configured."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ringfence.doctor.facts import Tool
from ringfence.errors import InvalidRequest, IsolationUnavailable
from ringfence.images.archive import all_in, default_cache
from ringfence.isolation.docker.configured import engine_settings
from ringfence.isolation.docker.engine import Engine
from ringfence.isolation.gvisor import runsc
from ringfence.runtimes.node import find_node

LANDLOCK_VERSION = 1
LANDLOCK_ERRATA = 2
# One number on every architecture that has Landlock.
_SYS_LANDLOCK_CREATE_RULESET = 444
_PATIENCE_SECONDS = 10.0


def landlock(question: int) -> int:
    """Ask the kernel for its Landlock ABI or errata; 0 when it has no answer."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    answer: int = libc.syscall(
        ctypes.c_long(_SYS_LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(question)
    )
    return max(answer, 0)


def file_systems() -> dict[str, bool]:
    """Mount an overlay and a tmpfs in a user namespace of a throwaway process; empty when that cannot be made."""
    script = Path(__file__).with_name("trial.py")
    done = _run([sys.executable, "-I", "-S", str(script)])
    if done is None or done.returncode:
        return {}
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: answer == "yes" for name, _, answer in pairs}


def bwrap() -> Tool:
    """Build a sandbox with the system's bwrap."""
    tool = version_of("bwrap", "--version")
    if tool.path is None:
        return tool
    done = _run([tool.path, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"])
    if done is not None and done.returncode == 0:
        return Tool(tool.path, tool.version.removeprefix("bubblewrap "), usable=True)
    problem = "did not end" if done is None else done.stderr.strip().splitlines()[-1:] or ["failed without a word"]
    return Tool(tool.path, tool.version, problem=problem if isinstance(problem, str) else problem[0])


def engine(home: Path, environ: Mapping[str, str]) -> Tool:
    """Ask the container engine of a home for its version and for the image that runs are made from."""
    try:
        settings = engine_settings(home, environ)
    except InvalidRequest as wrong:
        return Tool(problem=str(wrong))
    path = shutil.which(settings.command[0])
    if path is None:
        return Tool(problem="not installed")
    asked, version = Engine(settings, patience=_PATIENCE_SECONDS), ""
    try:
        version = asked.version()
        digest = asked.image_digest(settings.image)
    except IsolationUnavailable as refusal:
        return Tool(path, version, problem=f"{refusal}; fix: {refusal.fix}")
    return Tool(path, f"{version}, image {settings.image} ({digest[:19]})", usable=True)


def engine_url(home: Path, environ: Mapping[str, str]) -> str:
    """Return the address at which a home asks its engine; empty where the engine's command knows it."""
    try:
        return engine_settings(home, environ).url or ""
    except InvalidRequest:
        return ""


def gvisor() -> Tool:
    """Ask `runsc` for its release, and look for the image that boxes under gVisor are made from."""
    try:
        found = runsc.find()
    except IsolationUnavailable as refusal:
        return Tool(problem=f"{refusal}; fix: {refusal.fix}")
    version = f"{found.version}, by {found.platform}"
    if not all_in(default_cache()):
        return Tool(found.path, version, problem="there is no sandbox image; fix: ringfence image build")
    return Tool(found.path, version, usable=True)


def node() -> tuple[Tool, bool]:
    """Find the Node that runs would use, and whether it takes typescript."""
    found = find_node()
    if found is None:
        return Tool(shutil.which("node"), problem="none that works and is 20.12 or newer"), False
    return Tool(str(found.path), ".".join(map(str, found.version)), usable=True), found.strips_types


def version_of(name: str, *arguments: str) -> Tool:
    """Start a program and return the first line it prints."""
    path = shutil.which(name)
    if path is None:
        return Tool(problem="not installed")
    done = _run([path, *arguments])
    if done is None or done.returncode:
        return Tool(path, problem=f"{path} does not start")
    return Tool(path, done.stdout.strip().partition("\n")[0], usable=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
