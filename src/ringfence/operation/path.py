"""The one spelling of a path in the workspace: `/workspace/...`, whatever an agent or a policy wrote."""

from __future__ import annotations

from ringfence.errors import InvalidRequest, PathTraversalError

WORKSPACE = "/workspace"
MAX_PATH_BYTES = 4095
MAX_NAME_BYTES = 255

# Programs written for other sandboxes use these names; a deny rule must not be dodged by using the other one.
_ALIASES = {"output": "artifacts", "code": "work", "data": "work"}


def workspace_path(path: object) -> str:
    """Return where `path` lies: a path relative to the workspace, or its virtual absolute form.

    Raises:
        PathTraversalError: The path climbs with `..`, or is absolute and not below `/workspace`.
        InvalidRequest: It cannot be a path at all.
    """
    if not isinstance(path, str) or not path:
        raise InvalidRequest(f"{path!r} is not a path", reason="invalid_path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathTraversalError(f"{path[:100]!a} climbs with '..'", fix="name the file by its path below /workspace")
    if path.startswith("/"):
        parts = _below_workspace(path, parts)
    if parts:
        parts[0] = _ALIASES.get(parts[0], parts[0])
    _check_length(path, parts)
    return "/".join((WORKSPACE, *parts))


def relative(path: str) -> str:
    """Return a path in its one spelling without the leading `/workspace/`; the workspace itself is `.`."""
    return path[len(WORKSPACE) + 1 :] or "."


def is_beneath(path: str, root: str) -> bool:
    """Whether `path` is `root` or below it; both in their one spelling."""
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


def host_path(path: object) -> str:
    """Return an absolute path of the host in its one spelling; it is never opened for an agent by a broker.

    Raises:
        InvalidRequest: It is relative, climbs, or cannot be a path.
    """
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidRequest(f"{path!r} is not an absolute path of the host", reason="invalid_path")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise PathTraversalError(f"{path[:100]!a} climbs with '..'")
    _check_length(path, parts)
    return "/" + "/".join(parts)


def _below_workspace(path: str, parts: list[str]) -> list[str]:
    if parts[:1] == ["workspace"]:
        return parts[1:]
    if parts[:1] == ["output"]:
        return parts
    raise PathTraversalError(
        f"{path[:100]!a} is a path of the host", fix="use a path relative to the workspace, or /workspace/..."
    )


def _check_length(path: str, parts: list[str]) -> None:
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise InvalidRequest(f"{path[:100]!a} is not valid Unicode text", reason="invalid_path") from None
    # a control character could forge a line of a log; NUL would end the name early
    if not path.isprintable() and any(ord(character) < 32 or ord(character) == 127 for character in path):
        raise InvalidRequest(f"{path[:100]!a} contains a control character", reason="invalid_path")
    if sum(sizes) + len(sizes) > MAX_PATH_BYTES or max(sizes, default=0) > MAX_NAME_BYTES:
        raise InvalidRequest(
            f"{path[:100]!a} is longer than {MAX_PATH_BYTES} bytes, or {MAX_NAME_BYTES} in one name",
            reason="invalid_path",
        )
