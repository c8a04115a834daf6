"""Which projects a tenant has: looked up by name, never made by looking."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.authority.caller import LOCAL, check_tenant
from ringfence.errors import InvalidRequest, PathTraversalError
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.session import is_plain_name, project_path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def project_names(home: Path, tenant: str = LOCAL) -> list[str]:
    """Return the tenant's projects in order; a tenant that nobody ever saw has none.

    Raises:
        InvalidRequest: `tenant` cannot be one.
    """
    check_tenant(tenant)
    fd = _open(home, project_path("", tenant).rstrip("/"))
    if fd is None:
        return []
    try:
        with os.scandir(fd) as found:
            return sorted(entry.name for entry in found if is_plain_name(entry.name) and entry.is_dir())
    finally:
        os.close(fd)


def require_project(home: Path, project_id: str, tenant: str = LOCAL) -> None:
    """Pass if the tenant has the project; another tenant's and nobody's are refused alike.

    Raises:
        InvalidRequest: It has none of this name.
    """
    check_tenant(tenant)
    fd = _open(home, project_path(project_id, tenant)) if is_plain_name(project_id) else None
    if fd is None:
        raise InvalidRequest("there is no such project", reason="not_found", fix="list those there are")
    os.close(fd)


def _open(home: Path, path: str) -> int | None:
    try:
        home_fd = os.open(home, _DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return open_beneath(home_fd, f"workspace/{path}", _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError, PathTraversalError):
        return None
    finally:
        os.close(home_fd)
