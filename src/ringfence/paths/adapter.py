r"""Which spelling of the workspace this side of a Windows and WSL machine can open, and which the docker command takes.

The same directory is `D:\agents` to Windows and `/mnt/d/agents` to WSL. Each side gets its own spelling and never the
other's: a foreign one would not fail, it would name another directory, which docker then makes and mounts, empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

PROJECT_DIRECTORIES: Final = ("inputs", "work", "artifacts")
"""The only directories of a project that are ever mounted (003 §2)."""


class Side(StrEnum):
    """Whose spelling of a path is meant."""

    WINDOWS = "windows"
    WSL = "wsl"
    LINUX = "linux"


Translate = Callable[[str, Side], str | None]
"""Asks the machine what another side's path is called on this one; None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The settings `sandbox.workspace_root_win`, `…_wsl` and `workspace_root`, as they were written."""

    win: str | None = None
    wsl: str | None = None
    linux: str | None = None


@dataclass(frozen=True, slots=True)
class AdaptedPath:
    """One directory, for those who open it and for those who mount it."""

    side: Side
    host_path_native: str
    docker_mount_path: str

    def below(self, *names: str) -> AdaptedPath:
        """Return a directory below it.

        Raises:
            InvalidRequest: A name is none that this side can have.
        """
        check = _check_windows_name if self.side is Side.WINDOWS else _check_posix_name
        for name in names:
            check(name, name)
        separator = "\\" if self.side is Side.WINDOWS else "/"
        return AdaptedPath(
            self.side,
            separator.join((self.host_path_native, *names)),
            "/".join((self.docker_mount_path, *names)),
        )


def adapt(side: Side, roots: Roots, translate: Translate = lambda _path, _to: None) -> AdaptedPath:
    """Return the workspace's root as `side` spells it; what is missing is translated where somebody can.

    Raises:
        InvalidRequest: The root is not written as a path of that side, or is missing; the message says what to set.
    """
    match side:
        case Side.WINDOWS:
            return _windows(_given(roots.win, roots.wsl, side, translate))
        case Side.WSL:
            return _posix(_given(roots.wsl or roots.linux, roots.win, side, translate), side)
        case Side.LINUX:
            return _posix(_given(roots.linux, None, side, translate), side)


def project_paths(root: AdaptedPath, project_id: str) -> dict[str, AdaptedPath]:
    """Return the three directories of a project that may be mounted, by name."""
    project = root.below("workspace", "projects", project_id)
    return {name: project.below(name) for name in PROJECT_DIRECTORIES}


# --- whose spelling it is ---

_KEYS: Final = {
    Side.WINDOWS: "sandbox.workspace_root_win",
    Side.WSL: "sandbox.workspace_root_wsl",
    Side.LINUX: "sandbox.workspace_root",
}
_EXAMPLES: Final = {Side.WINDOWS: "D:\\agents", Side.WSL: "/mnt/d/agents", Side.LINUX: "/srv/agents"}


def _given(own: str | None, other: str | None, side: Side, translate: Translate) -> str:
    if own:
        return own
    translated = translate(other, side) if other else None
    if translated:
        return translated
    untranslated = f", and nothing here translates {other[:100]!a} (wslpath does)" if other else ""
    raise InvalidRequest(
        f"{_KEYS[side]} is not set{untranslated}", reason="invalid_config", fix=f"set it, as in {_EXAMPLES[side]!r}"
    )


# --- Windows: a drive, then names ---

_DRIVE: Final = re.compile(r"([A-Za-z]):[\\/]+(.*)\Z", re.DOTALL)
_FORBIDDEN: Final = re.compile(r'[<>:"|?*\x00-\x1f\x7f]')
# also with any suffix: Windows opens `nul.txt` as the device
_DEVICES: Final = frozenset({"con", "prn", "aux", "nul"} | {f"{kind}{n}" for kind in ("com", "lpt") for n in range(10)})


def _windows(path: str) -> AdaptedPath:
    if path.startswith("/"):
        raise _refused(path, Side.WINDOWS, "is a path of WSL")
    if path.startswith("\\\\"):
        raise _refused(path, Side.WINDOWS, "is on a share or has a prefix, which the docker command cannot mount")
    found = _DRIVE.match(path)
    if found is None:
        raise _refused(path, Side.WINDOWS, "does not begin with a drive")
    names = [name for name in re.split(r"[\\/]+", found[2]) if name]
    if not names:
        raise _refused(path, Side.WINDOWS, "is a whole drive")
    for name in names:
        _check_windows_name(name, path)
    drive = f"{found[1].upper()}:"
    # with slashes: the same to docker.exe, and nothing on the way takes them for an escape
    return AdaptedPath(Side.WINDOWS, "\\".join((drive, *names)), "/".join((drive, *names)))


def _check_windows_name(name: str, path: str) -> None:
    if name in (".", ".."):
        raise _refused(path, Side.WINDOWS, f"has {name!r} in it")
    if not name or "/" in name or "\\" in name or _FORBIDDEN.search(name) or name[-1] in ". ":
        raise _refused(path, Side.WINDOWS, f"has a name that Windows cannot keep: {name[:100]!a}")
    if name.partition(".")[0].rstrip().lower() in _DEVICES:
        raise _refused(path, Side.WINDOWS, f"has the name of a device: {name[:100]!a}")


# --- WSL and Linux: names below the root ---


def _posix(path: str, side: Side) -> AdaptedPath:
    if _DRIVE.match(path) or "\\" in path:
        raise _refused(path, side, "is a path of Windows")
    if not path.startswith("/"):
        raise _refused(path, side, "is not absolute")
    names = [name for name in path.split("/") if name]
    if not names:
        raise _refused(path, side, "is the whole file system")
    if side is Side.WSL and len(names) == 2 and names[0] == "mnt" and len(names[1]) == 1:
        raise _refused(path, side, "is a whole drive")
    for name in names:
        _check_posix_name(name, path, side)
    joined = "/" + "/".join(names)
    return AdaptedPath(side, joined, joined)


def _check_posix_name(name: str, path: str, side: Side = Side.WSL) -> None:
    if name in (".", ".."):
        raise _refused(path, side, f"has {name!r} in it")
    if not name or "/" in name or "\\" in name or not name.isprintable():
        raise _refused(path, side, f"has a name that cannot be mounted: {name[:100]!a}")
    if ":" in name:
        raise _refused(path, side, "has a colon, at which `docker run -v` would divide it")


def _refused(path: str, side: Side, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the path {path[:200]!a} {why}", reason="invalid_path", fix=f"on {side} write it as {_EXAMPLES[side]!r}"
    )
