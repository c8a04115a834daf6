"""Find the interpreter and the shell the guest runs, and what of the host the box must show or hide for them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable, RuntimeMissing

_SYSTEM_NAMES = ("usr", "bin", "sbin", "lib", "lib64", "lib32")
_LIBRARY_NAMES = ("lib", "lib64", "local/lib", "local/lib64")
_PACKAGE_NAMES = ("dist-packages", "site-packages")


PYTHON: Final = f"python {'.'.join(map(str, sys.version_info[:3]))}"
"""What evidence calls the interpreter of guests, which is that of this process."""


@dataclass(frozen=True, slots=True)
class PythonRuntime:
    """The base interpreter of this process, as the guest sees it.

    `trees` are mounted read-only at the same path, in addition to the system trees; `hidden` are
    directories of installed packages that the box shows empty, so that the standard library is all there is.
    """

    executable: Path
    prefix: Path
    stdlib: tuple[Path, ...]
    version: tuple[int, int, int]
    trees: tuple[Path, ...]
    hidden: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class SystemTree:
    """One top-level system directory: a tree to bind, or a link to make again when `link` is set."""

    path: Path
    link: str | None = None


def python_runtime() -> PythonRuntime:
    """Return the interpreter that runs guests: the one below any virtual environment.

    Raises:
        RuntimeMissing: This process was not started by a Python on disk.
        IsolationUnavailable: The guest's unprivileged user could not read the interpreter.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    if not base or not (executable := Path(base).resolve()).is_file():
        raise RuntimeMissing("this process has no Python executable on disk", fix="run Ringfence from a normal Python")
    prefix = Path(sys.base_prefix).resolve()
    stdlib = _standard_library()
    runtime = PythonRuntime(
        executable=executable,
        prefix=prefix,
        stdlib=stdlib,
        version=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        trees=interpreter_trees(executable, prefix, stdlib),
        hidden=package_directories(prefix),
    )
    if os.geteuid() == 0:
        refuse_unreadable(runtime)
    return runtime


def interpreter_trees(executable: Path, prefix: Path, stdlib: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return what to mount for an interpreter, none when it lies in the system trees.

    Only the directory of the executable and the library directories, never the prefix itself:
    a Python built into `~/.local` would bring everything else that is kept there.
    """
    wanted = [executable.parent, prefix / "lib", prefix / "lib64", *stdlib]
    outside = sorted({path.resolve() for path in wanted if path.is_dir() and not _is_system(path.resolve())})
    return tuple(path for path in outside if not any(path != other and path.is_relative_to(other) for other in outside))


def package_directories(prefix: Path, *, system: Path = Path("/usr")) -> tuple[Path, ...]:
    """Return the package directories of every Python the box would show, the system's included."""
    found: set[Path] = set()
    for library in (root / name for root in (prefix, system) for name in _LIBRARY_NAMES):
        try:  # by hand: `Path.glob` takes milliseconds for it
            with os.scandir(library) as entries:
                versions = [entry.path for entry in entries if entry.name.startswith("python3")]
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        found |= {Path(version, name) for version in versions for name in _PACKAGE_NAMES}
    return tuple(sorted({path.resolve() for path in found if path.is_dir()}))


def refuse_unreadable(runtime: PythonRuntime) -> None:
    """Refuse an interpreter that only its owner can read; as root, the guest runs under another uid.

    Raises:
        IsolationUnavailable: Naming the first path that others cannot read.
    """
    # Directories above the trees do not count: the box makes them itself.
    for path in (*runtime.trees, *runtime.stdlib, runtime.executable):
        if (closed := _first_closed(path, runtime.trees)) is not None:
            raise IsolationUnavailable(
                f"the guest's user cannot read the interpreter: {closed} is closed to others",
                reason="interpreter_unreadable",
                fix=f"chmod -R o+rX {closed}",
            )


def bash_path() -> Path:
    """Return the shell that runs bash code and commands.

    Raises:
        RuntimeMissing: There is no bash.
    """
    for path in (Path("/bin/bash"), Path("/usr/bin/bash")):
        if os.access(path, os.X_OK):
            return path
    raise RuntimeMissing("bash needs /bin/bash, which is not installed", fix="apt-get install bash", language="bash")


def system_trees(root: Path = Path("/")) -> tuple[SystemTree, ...]:
    """Return the system directories of this machine; with a merged /usr, /bin and /lib are links to make again."""
    trees = []
    for name in _SYSTEM_NAMES:
        path = root / name
        if path.is_symlink():
            target = path.readlink()
            # Only into /usr: any other link could show the guest a directory nobody decided to show.
            top, *below = str(target).lstrip("/").split("/")
            if top == "usr" and below and ".." not in below:
                trees.append(SystemTree(Path("/", name), link=str(target)))
        elif path.is_dir():
            trees.append(SystemTree(Path("/", name)))
    return tuple(trees)


def _first_closed(path: Path, trees: tuple[Path, ...]) -> Path | None:
    top = next((tree for tree in trees if path.is_relative_to(tree)), path)
    steps = [path, *(parent for parent in path.parents if parent.is_relative_to(top))]
    for step in reversed(steps):
        mode = step.stat().st_mode
        needed = stat.S_IROTH | stat.S_IXOTH
        if mode & needed != needed:
            return step
    return None


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(Path("/", name)) for name in _SYSTEM_NAMES)


def _standard_library() -> tuple[Path, ...]:
    # Not asked of `sysconfig`, which reads how this Python was compiled to answer. `os` is never a virtual
    # environment's own; what is for one kind of machine lies in the same place below another prefix, if not beside it.
    pure = Path(os.__file__).parent
    found = [pure]
    if sys.base_exec_prefix != sys.base_prefix and pure.is_relative_to(sys.base_prefix):
        found.append(sys.base_exec_prefix / pure.relative_to(sys.base_prefix))
    return tuple(dict.fromkeys(path.resolve() for path in found if path.is_dir()))
