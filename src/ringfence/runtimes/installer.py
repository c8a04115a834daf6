"""Drive uv or pip so that wheels are unpacked into a directory and not one line of them runs on the host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RingfenceError, Unavailable

# Becomes the client after asking the kernel to kill it with us: a killed host must leave no download behind.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""
_NO_NETWORK = re.compile(
    r"error sending request|dns error|tcp connect error|connection refused|failed to establish a new connection"
    r"|temporary failure in name resolution|name or service not known|network is unreachable|connection timed out"
    r"|connection to .* timed out|request failed after|max retries exceeded|connection broken|network connectivity is",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(r"Could not fetch URL .*: connection error")  # pip goes on as if the index were empty
_NO_WHEEL = re.compile(
    r"no usable wheels|has no wheels|have no wheels|no wheels with a matching|no sources permitted"
    r"|building from source is disabled|wheels are required for",
    re.IGNORECASE,
)
_CREDENTIALS = re.compile(r"://[^/\s@]+@")  # the index address may hold the owner's password; the agent reads this
# Settings of the owner that would send the wheels elsewhere or let source archives back in.
_SCRUBBED = frozenset(
    f"{client}_{name}"
    for client in ("PIP", "UV")
    for name in ("TARGET", "PREFIX", "ROOT", "USER", "NO_BINARY", "PYTHON", "SYSTEM_PYTHON", "REQUIREMENT", "EDITABLE")
)
_LINE = 300


@dataclass(frozen=True, slots=True)
class Client:
    """A package client on this machine: `uv`, or the pip beside the application."""

    name: str
    program: tuple[str, ...]


def find_client() -> Client:
    """Return uv when it is there, else the pip of the environment the application runs in.

    Raises:
        Unavailable: There is neither.
    """
    beside = Path(sys.executable).with_name("uv")
    if uv := shutil.which("uv") or (str(beside) if os.access(beside, os.X_OK) else None):
        return Client("uv", (str(Path(uv).absolute()),))
    if find_spec("pip") is not None:
        return pip_client()
    raise Unavailable(
        "packages need uv or pip, and neither is installed",
        reason="no_package_client",
        fix="pip install uv, or python -m ensurepip",
    )


def pip_client() -> Client:
    """Return the pip of this interpreter; `-I` keeps a `pip` directory in the working directory out of it."""
    return Client("pip", (sys.executable, "-I", "-m", "pip"))


def install_command(client: Client, requirements: Sequence[str], target: Path, python: Path, log: Path) -> list[str]:
    """Return the command that unpacks wheels for `requirements` into `target`, refusing every source archive."""
    if client.name == "uv":
        options = ["--python", str(python), "--no-build", "--no-progress", "--color", "never"]
        # Copies: with links into uv's cache, changing a mode here would change the cache.
        options += ["--link-mode", "copy", "--no-python-downloads"]
        return [*client.program, "pip", "install", "--target", str(target), *options, "--", *requirements]
    options = ["--only-binary", ":all:", "--no-compile", "--no-input", "--disable-pip-version-check"]
    options += ["--no-color", "--progress-bar", "off", "--log", str(log)]
    return [*client.program, "install", "--target", str(target), *options, "--", *requirements]


def compile_command(python: Path, tree: Path, box_path: Path) -> list[str]:
    """Return the command that writes byte-code for `tree` as if it already lay at `box_path`.

    Compiling runs nothing. Hash-based files without a check make the same wheels give the same bytes.
    """
    options = ["-q", "-q", "-f", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", str(box_path)]
    return [str(python), "-I", "-m", "compileall", *options, str(tree)]


def run(
    command: Sequence[str], cwd: Path, timeout: float, keep_open: Sequence[int]
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end in `cwd`, to die with us, holding `keep_open` (the build's lock) as long as it lives."""
    launcher = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    try:
        return subprocess.run(
            launcher,
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if name not in _SCRUBBED},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            pass_fds=tuple(keep_open),
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(
            f"building the package environment took longer than {timeout:.0f} s", reason="package_timeout"
        ) from None


def explain(requirements: Sequence[str], output: str, log: str) -> RingfenceError:
    """Return the error that a failed client's words amount to."""
    wanted = ", ".join(requirements)
    last = last_line(output)
    if _NO_NETWORK.search(output) or _NO_ANSWER.search(log):
        return Unavailable(
            f"the package index cannot be reached: {last}",
            reason="package_index_unreachable",
            fix="check the network and the package client's index settings",
        )
    # pip's log says for every archive it passed over that it is source; that matters when it found nothing else.
    if _NO_WHEEL.search(output) or ("(from versions: none)" in output and _NO_WHEEL.search(log)):
        return InvalidRequest(f"no wheel for {wanted}, and nothing is built from source: {last}", reason="no_wheel")
    if re.search(r"no space left|disk quota exceeded|permission denied|read-only file system", output, re.IGNORECASE):
        return Unavailable(f"the package environment cannot be written: {last}", reason="package_store_unwritable")
    return InvalidRequest(f"cannot find {wanted}: {last}", reason="package_not_found")


def last_line(output: str) -> str:
    """Return the client's last word that says why, without its hints and notices."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if not line.lower().startswith(("hint:", "[notice]", "warning:"))]
    line = (telling or lines or ["the package client said nothing"])[-1]
    return _CREDENTIALS.sub("://", line)[:_LINE]
