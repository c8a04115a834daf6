"""Names that cross the boundary: what a caller may call an input, and how a guest's file name is shown to people."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath
from urllib.parse import unquote_to_bytes

from ringfence.errors import InvalidRequest, PathTraversalError

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 1024
MAX_DEPTH = 32

# What programs written for other sandboxes call the same directories; the box has links of these names.
_ALIASES = {"output": "artifacts", "code": "work", "data": "work"}
_KEPT_OUT = "%/\\"  # the escape itself, and what some reader could take for a separator


def check_input_path(name: str, *, under: str = "work") -> PurePosixPath:
    """Return `name` as a plain path relative to `/workspace/<under>`.

    `a//b` and `./a` mean `a/b` and `a` to every program and are normalised; a trailing slash names a directory
    and is refused. The virtual form `/workspace/<under>/a` means `a`; every other absolute path is the host's.
    A leading `-` is allowed: the caller who chose the name also writes the command line.

    Raises:
        PathTraversalError: The path is absolute or climbs with `..`.
        InvalidRequest: The path cannot be a file name, or not one that is safe to print.
    """
    _require_text(name)
    relative = name.removeprefix(f"/workspace/{under}/")
    if relative.startswith("/"):
        raise PathTraversalError(f"{name[:100]!a} is absolute", fix=f"use a path relative to /workspace/{under}")
    if not relative or relative.endswith("/"):
        raise _refused(name, "names no file")
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathTraversalError(f"{name[:100]!a} climbs with '..'")
    if not parts or relative.endswith("/."):
        raise _refused(name, "names no file")
    _require_short(name, parts)
    return PurePosixPath(*parts)


def locate(name: str, *, base: str = "") -> tuple[str, ...]:
    """Return the parts of `name` below `/workspace`; a relative one starts at `/workspace/<base>`.

    `/workspace/...` and `/output/...` are the only absolute forms, and no path of the host; the aliases of a directory
    mean the directory. The workspace itself is no part at all.

    Raises:
        PathTraversalError: The path is another absolute one, or climbs with `..`.
        InvalidRequest: The path cannot be a file name, or not one that is safe to print.
    """
    _require_text(name)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathTraversalError(f"{name[:100]!a} climbs with '..'")
    if not name.startswith("/"):
        parts = [base, *parts] if base else parts
    elif name.startswith("//") or parts[:1] not in (["workspace"], ["output"]):
        raise PathTraversalError(f"{name[:100]!a} is absolute", fix="use a path relative to the workspace")
    elif parts[0] == "workspace":
        del parts[0]
    _require_short(name, parts)
    if parts:
        parts[0] = _ALIASES.get(parts[0], parts[0])
    return tuple(parts)


def harmless(name: bytes) -> str:
    r"""Return one file name chosen by a guest as text that can do nothing to a terminal, a log or a path.

    Whatever is not printable (control characters, ANSI, newlines, bidirectional overrides, bytes that are not
    UTF-8) and `%`, `/`, `\` become `%XX` bytes, so two names never look the same and `original` undoes it.
    """
    if name in (b".", b".."):
        return "%2E" * len(name)
    return "".join(_shown(character) for character in name.decode("utf-8", "surrogateescape"))


def harmless_path(path: bytes) -> str:
    """Return a guest's relative path with every name made `harmless`."""
    return "/".join(map(harmless, path.split(b"/")))


def original(name: str) -> bytes:
    """Return the raw bytes of a name or path that was made harmless."""
    return unquote_to_bytes(name)


def _shown(character: str) -> str:
    if character.isprintable() and character not in _KEPT_OUT:
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def _require_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _refused(name, "is not valid Unicode text") from None
    if any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in name):
        raise _refused(name, "contains a control character")


def _require_short(name: str, parts: list[str]) -> None:
    size = len(name.encode())
    if size > MAX_PATH_BYTES or len(parts) > MAX_DEPTH or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        limits = f"{MAX_PATH_BYTES} bytes, {MAX_NAME_BYTES} in one name, {MAX_DEPTH} levels"
        raise _refused(name, f"is longer than {limits}")


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"path {name[:100]!a} {why}", reason="invalid_path")
