"""Collects the facts of this machine; it judges nothing, and what cannot be read is left unknown.

`root` is `/` except in tests, which lay out the files of other machines in a directory.
"""

from __future__ import annotations

import os
import platform
import resource
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ringfence.doctor import try_out
from ringfence.doctor.facts import Box, Cgroups, Facts, Home, Image, Journal

_SYSCTLS = (
    "user.max_user_namespaces",
    "user.max_mnt_namespaces",
    "user.max_pid_namespaces",
    "user.max_net_namespaces",
    "user.max_ipc_namespaces",
    "user.max_uts_namespaces",
    "user.max_cgroup_namespaces",
    "kernel.unprivileged_userns_clone",
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.pid_max",
    "kernel.io_uring_disabled",
    "kernel.yama.ptrace_scope",
    "dev.tty.legacy_tiocsti",
)
_ENGINE_SOCKETS = ("/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock")
_GVISOR_BUILD = "Sun Jan 10 15:06:54 PST 2016"


def gather(
    probe: Callable[[], Box],
    environ: Mapping[str, str],
    root: Path = Path("/"),
    journal: Callable[[Path], Journal | None] = lambda _: None,
    image: Callable[[], Image | None] = lambda: None,
) -> Facts:
    """Look at the machine.

    `probe` really builds a box and says what came of it, `journal` looks into a home, `image` at what was built.
    """
    os_release = _os_release(root)
    trial = try_out.file_systems()
    node, strips_types = try_out.node()
    actions = _read(root / "proc/sys/kernel/seccomp/actions_avail")
    return Facts(
        box=probe(),
        kernel=_read(root / "proc/sys/kernel/osrelease") or platform.release(),
        arch=platform.machine(),
        os_id=os_release.get("ID", ""),
        os_version=os_release.get("VERSION_ID", ""),
        uid=os.geteuid(),
        sysctl=sysctls(root),
        landlock_abi=try_out.landlock(try_out.LANDLOCK_VERSION),
        landlock_errata=try_out.landlock(try_out.LANDLOCK_ERRATA),
        seccomp_actions=None if actions is None else frozenset(actions.split()),
        cgroups=cgroups(root),
        systemd=(root / "run/systemd/system").is_dir(),
        inside=surroundings(root, environ),
        overlay_in_userns=trial.get("overlay"),
        tmpfs_user_xattr=trial.get("tmpfs_user_xattr"),
        vsock=(root / "dev/vsock").exists(),
        engine_sockets=engine_sockets(root, environ),
        bwrap=try_out.bwrap(),
        gvisor=try_out.gvisor(),
        engine=try_out.engine(Path(state_directory(environ).path), environ),
        node=node,
        node_strips_types=strips_types,
        bash=try_out.version_of("bash", "-c", "echo $BASH_VERSION"),
        interpreter=_interpreter(),
        interpreter_unreadable=_unreadable_to_others(),
        home=(home := state_directory(environ)),
        journal=journal(Path(home.path)),
        image=image(),
        memory_available_bytes=_memory_available(root),
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        processes_limit=resource.getrlimit(resource.RLIMIT_NPROC)[0],
    )


def sysctls(root: Path) -> dict[str, str]:
    """Return the switches that exist, by their dotted names, and the active security modules."""
    files = {name: root / "proc/sys" / name.replace(".", "/") for name in _SYSCTLS}
    files["security.lsm"] = root / "sys/kernel/security/lsm"
    values = {name: _read(path) for name, path in files.items()}
    return {name: value for name, value in values.items() if value is not None}


def engine_sockets(root: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sockets behind which an engine of root's listens, as far as this process may write to them.

    A rootless engine's socket belongs to whoever runs it, and gives no more than that user has.
    """
    addresses = (environ.get("DOCKER_HOST", ""), try_out.engine_url(Path(state_directory(environ).path), environ))
    named = (address.removeprefix("unix://") for address in addresses)
    candidates = dict.fromkeys((*_ENGINE_SOCKETS, *(path for path in named if path.startswith("/"))))
    return tuple(path for path in candidates if _is_roots_socket(root / path.lstrip("/")))


def _is_roots_socket(path: Path) -> bool:
    try:
        seen = path.stat()
    except OSError:
        return False
    return stat.S_ISSOCK(seen.st_mode) and seen.st_uid == 0 and os.access(path, os.W_OK)


def surroundings(root: Path, environ: Mapping[str, str]) -> str | None:
    """Name the container or layer this process is inside of, the one that decides what is allowed first."""
    version = _read(root / "proc/version") or ""
    if _GVISOR_BUILD in version:
        return "gvisor"
    if "Microsoft" in version and "WSL2" not in version:
        return "wsl1"
    if "KUBERNETES_SERVICE_HOST" in environ or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    if "lxc" in (_read(root / "run/systemd/container") or environ.get("container", "")):
        return "lxc"
    return "wsl2" if "microsoft" in version else None


def cgroups(root: Path) -> Cgroups:
    """Find the hierarchy that can limit memory and processes, and whether this process may use it."""
    mounts = _cgroup_mounts(root)
    unified, controllers_at = _own_cgroups(root)
    v2 = _at(root, mounts.get("cgroup2"), unified)
    if v2 is not None:
        found = frozenset((_read(v2 / "cgroup.controllers") or "").split())
        if {"memory", "pids"} <= found:
            writable = os.access(v2, os.W_OK) and os.access(v2 / "cgroup.procs", os.W_OK)
            return Cgroups("v2", str(v2), found, writable)
    places = {name: _at(root, mounts.get(name), path) for name, path in controllers_at.items()}
    v1 = {name: place for name, place in places.items() if place is not None}
    if "memory" in v1:
        usable = frozenset(name for name, place in v1.items() if os.access(place, os.W_OK))
        return Cgroups("v1", str(v1["memory"]), usable, "memory" in usable, _is_read_only(v1["memory"]))
    if v2 is not None:
        found = frozenset((_read(v2 / "cgroup.controllers") or "").split())
        return Cgroups("v2", str(v2), found, os.access(v2, os.W_OK))
    return Cgroups()


def _is_read_only(place: Path) -> bool:
    try:
        return bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _cgroup_mounts(root: Path) -> dict[str, tuple[str, str]]:
    """Map `cgroup2` and each v1 controller to (mount point, root of the mount inside the hierarchy)."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (fields[4], fields[3])
        if kind[0] == "cgroup2":
            mounts["cgroup2"] = place
        elif kind[0] == "cgroup":
            mounts |= dict.fromkeys(kind[2].split(","), place)
    return mounts


def _own_cgroups(root: Path) -> tuple[str, dict[str, str]]:
    unified = "/"
    controllers: dict[str, str] = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            unified = path
        elif not names.startswith("name="):
            controllers |= dict.fromkeys(names.split(","), path)
    return unified, controllers


def _at(root: Path, mount: tuple[str, str] | None, path: str) -> Path | None:
    if mount is None:
        return None
    point, inner = mount
    beneath = path.removeprefix(inner.rstrip("/")) if path.startswith(inner) else "/"
    return root / (point + beneath).strip("/")


def state_directory(environ: Mapping[str, str]) -> Home:
    """Describe `$RINGFENCE_HOME`, without making it."""
    path = Path(environ.get("RINGFENCE_HOME") or Path(environ.get("HOME", "/"), ".ringfence"))
    try:
        status = path.stat()
    except FileNotFoundError:
        parent = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
        return Home(str(path), writable=os.access(parent, os.W_OK | os.X_OK))
    except OSError:
        return Home(str(path), writable=False)
    writable = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    return Home(str(path), True, writable, status.st_mode & 0o7777, status.st_uid == os.geteuid())


def _interpreter() -> str:
    return str(Path(getattr(sys, "_base_executable", "") or sys.executable).resolve())


def _unreadable_to_others() -> tuple[str, ...]:
    import sysconfig

    wanted = {Path(_interpreter()): 0o005, Path(sysconfig.get_path("stdlib")): 0o005}
    return tuple(str(path) for path, bits in wanted.items() if path.stat().st_mode & bits != bits)


def _memory_available(root: Path) -> int | None:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _os_release(root: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in (_read(root / "etc/os-release") or "").splitlines())
    return {name: value.strip('"') for name, _, value in pairs}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
