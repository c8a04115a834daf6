"""The bubblewrap command line of one box: the same view as the native one, as far as bubblewrap can build it."""

from __future__ import annotations

from ringfence.isolation.linux.outfit import BoxView
from ringfence.isolation.linux.view import LINKS

SOURCE = "/opt/ringfence/lib"
PRIVATE = "/workspace/.private"
TERMINALS = "/opt/ringfence/dev"
# one tmpfs, so that one size holds for everything the guest can write
_INTO_WORKSPACE = ((f"{PRIVATE}/tmp", "/tmp"), (f"{PRIVATE}/shm", "/dev/shm"), (f"{PRIVATE}/home", "/home/sandbox"))
_NAMESPACES = ("user", "pid", "net", "ipc", "uts", "cgroup")


def bwrap_argv(
    view: BoxView,
    *,
    devices: tuple[str, ...],
    bwrap: str,
    package: str,
    hostname: str,
    disk_bytes: int,
    info_fd: int,
    generated: dict[str, int],
    command: list[str],
    nothing: int | None = None,
) -> list[str]:
    """Return the command line that runs `command` as pid 1 of a box; `generated` are files given by descriptor.

    With `nothing`, a descriptor of an empty file, the box can open terminals of its own.
    """
    argv = [bwrap, *(f"--unshare-{kind}" for kind in _NAMESPACES), "--uid", "1000", "--gid", "1000"]
    # no --die-with-parent: killed between its fork and the id maps, bubblewrap leaves a child that waits forever
    argv += ["--cap-drop", "ALL", "--clearenv", "--as-pid-1"]
    argv += ["--hostname", hostname, "--info-fd", str(info_fd)]
    for source, target in view.trees:
        argv += ["--ro-bind", source, target]
    argv += ["--ro-bind", package, f"{SOURCE}/ringfence"]
    for says, where in (*view.links, *_outside_workspace(LINKS), *_INTO_WORKSPACE):
        argv += ["--symlink", says, _absolute(where)]
    for hidden in view.hidden:
        argv += ["--tmpfs", hidden, "--remount-ro", hidden]
    for name in devices:
        argv += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    if nothing is not None:
        # bubblewrap makes an instance of devpts only with devices of its choice: beside ours, and without the one
        # whose shared mappings are memory that nobody counts
        argv += ["--symlink", f"{TERMINALS}/pts", "/dev/pts", "--symlink", TERMINALS, "/dev/terminal"]
        argv += ["--dev", TERMINALS]
        argv += ["--perms", "0000", "--ro-bind-data", str(nothing), f"{TERMINALS}/zero", "--remount-ro", TERMINALS]
    for where, fd in generated.items():
        argv += ["--ro-bind-data", str(fd), _absolute(where)]
    argv += ["--proc", "/proc", "--dir", "/run", "--size", str(disk_bytes), "--tmpfs", "/workspace"]
    return [*argv, "--remount-ro", "/", "--chdir", "/", "--", *command]


def workspace_links() -> tuple[tuple[str, str], ...]:
    """Return the links that lie in the workspace itself and are made by whoever starts in it."""
    return tuple((says, where) for says, where in LINKS if _absolute(where).startswith("/workspace/"))


def _outside_workspace(links: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple(link for link in links if link not in workspace_links())


def _absolute(path: str) -> str:
    return "/" + path.lstrip("/")
