"""What the boxes of this machine are made with: which trees of the host they show, and the filters they run under."""

from __future__ import annotations

import binascii
import os
from pathlib import Path
from typing import Any

from ringfence.dataclass import dataclass
from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.seccomp import filters
from ringfence.isolation.linux.view import DEVICES
from ringfence.ports import WorkerSpec
from ringfence.runtimes import node, python
from ringfence.runtimes.places import BOX_PACKAGES
from ringfence.workspaces.declared import read_only_mounts

_PACKAGES = str(BOX_PACKAGES)
_BIN = "/opt/ringfence/bin"
# public by nature: names of libraries, links between programs, certificates everybody trusts
_SHOWN_FROM_ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/mime.types")
_ENVIRONMENT = {
    "PATH": f"{_BIN}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/home/sandbox",
    "USER": "sandbox",
    "LOGNAME": "sandbox",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
    # one thread each: a zygote must not have threads, and a box has one cpu by default
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class BoxView:
    """What the host decided to show inside; every path here exists on the host and is trusted."""

    trees: tuple[tuple[str, str], ...]
    """Directories or files of the host and where they appear, read-only, in the box."""
    links: tuple[tuple[str, str], ...]
    """Symlinks: what they say and where they are."""
    hidden: tuple[str, ...]
    """Directories inside the trees that appear empty."""

    def notes(self) -> tuple[str, ...]:
        """Say of each directory that the operator declared that it is there."""
        shown = sorted(target for _, target in self.trees if target.startswith("/mnt/"))
        return tuple(f"{target} is a directory of the host, for reading" for target in shown)


@dataclass(frozen=True, slots=True)
class Outfit:
    """Everything a box is made from before any run is known; equal outfits may share a zygote."""

    executable: str
    view: BoxView
    base_filter: bytes
    seal_filter: bytes
    init_filter: bytes
    landlock_abi: int
    environment: tuple[tuple[str, str], ...]
    sys_path: tuple[str, ...]
    preload: tuple[str, ...]
    devices: tuple[str, ...]

    def to_message(self, *, source: str) -> dict[str, Any]:
        """Return plain JSON values; `source` is where the inside finds this package while it starts."""
        return {
            "source": source,
            "trees": self.view.trees,
            "links": self.view.links,
            "hidden": self.view.hidden,
            "base_filter": binascii.b2a_base64(self.base_filter, newline=False).decode(),
            "seal_filter": binascii.b2a_base64(self.seal_filter, newline=False).decode(),
            "init_filter": binascii.b2a_base64(self.init_filter, newline=False).decode(),
            "landlock_abi": self.landlock_abi,
            "environment": dict(self.environment),
            "sys_path": self.sys_path,
            "preload": self.preload,
            "devices": self.devices,
        }


def outfit(
    environment_path: str | None,
    preload: tuple[str, ...],
    node_cache: Path | None,
    *,
    memory_is_counted: bool,
    mounts: tuple[tuple[str, str], ...] = (),
) -> Outfit:
    """Return what boxes with this package environment are made from.

    `mounts` are the directories that the operator declared, and where in `/mnt` they appear.
    Where no cgroup counts memory (`memory_is_counted`), guests get no shared memory that outlives who filled it.

    Raises:
        IsolationUnavailable: The interpreter cannot be shown to the guest, or the machine is unknown.
    """
    interpreter = python.python_runtime()
    runtime = node.find_node(cache=node_cache)
    machine = os.uname().machine
    environment = dict(_ENVIRONMENT)
    if environment_path is not None:
        environment["PYTHONPATH"] = _PACKAGES
    return Outfit(
        executable=str(interpreter.executable),
        view=_view(interpreter, runtime, environment_path, mounts),
        base_filter=filters.base_filter(machine),
        seal_filter=filters.seal_filter(machine) if memory_is_counted else filters.frugal_filter(machine),
        init_filter=filters.init_filter(machine),
        landlock_abi=kernel.landlock_abi(),
        environment=tuple(environment.items()),
        sys_path=(_PACKAGES,) if environment_path is not None else (),
        preload=preload,
        # a shared mapping of /dev/zero is such memory too
        devices=tuple(name for name in DEVICES if memory_is_counted or name != "zero"),
    )


def outfit_in(home: Path, spec: WorkerSpec, memory_is_counted: bool) -> Outfit:
    """Return the outfit with what the operator of `home` shows in every box."""
    mounts, cache = read_only_mounts(home), home / "node.json"
    return outfit(spec.packages, spec.preload, cache, memory_is_counted=memory_is_counted, mounts=mounts)


def _view(
    interpreter: python.PythonRuntime,
    runtime: node.NodeRuntime | None,
    environment_path: str | None,
    mounts: tuple[tuple[str, str], ...],
) -> BoxView:
    trees = [(str(tree), str(tree)) for tree in interpreter.trees]
    links = [(str(interpreter.executable), f"{_BIN}/{name}") for name in ("python", "python3")]
    for tree in python.system_trees():
        if tree.link is None:
            trees.append((str(tree.path), str(tree.path)))
        else:
            links.append((tree.link, str(tree.path)))
    trees += [(path, path) for path in _SHOWN_FROM_ETC if Path(path).exists()]
    if runtime is not None:
        trees.append((str(node.BOOTSTRAP), str(node.BOX_BOOTSTRAP)))
        links.append((str(runtime.box_path), f"{_BIN}/node"))
        if runtime.needs_mount:
            trees.append((str(runtime.root), str(node.BOX_DIRECTORY)))
    if environment_path is not None:
        trees.append((environment_path, _PACKAGES))
    trees += mounts
    # outer trees first, so that an inner one is not covered
    trees.sort(key=lambda tree: tree[1].count("/"))
    return BoxView(tuple(trees), tuple(links), tuple(map(str, interpreter.hidden)))
