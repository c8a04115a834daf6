"""Decides what a box of this machine shows: which trees of the host, under which names, and the filters it runs under."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.isolation.native import kernel
from ringfence.isolation.native.fork_server import ServerConfig
from ringfence.isolation.native.seccomp import filters
from ringfence.isolation.native.template import Template
from ringfence.isolation.worker import NODE_BOOTSTRAP
from ringfence.runtimes import node, python

PACKAGES = "/opt/ringfence/packages"
NODE_ROOT = "/opt/ringfence/node"
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


def server_config(packages: str | None, preload: tuple[str, ...]) -> ServerConfig:
    """Return what a zygote with this package environment is made from.

    Raises:
        IsolationUnavailable: The interpreter cannot be shown to the guest, or the machine is unknown.
    """
    interpreter = python.python_runtime()
    runtime = node.find_node()
    machine = os.uname().machine
    environment = dict(_ENVIRONMENT)
    if packages is not None:
        environment["PYTHONPATH"] = PACKAGES
    return ServerConfig(
        executable=str(interpreter.executable),
        template=_template(interpreter, runtime, packages),
        base_filter=filters.base_filter(machine),
        seal_filter=filters.seal_filter(machine),
        init_filter=filters.init_filter(machine),
        landlock_abi=kernel.landlock_abi(),
        environment=tuple(environment.items()),
        sys_path=(PACKAGES,) if packages is not None else (),
        preload=preload,
    )


def node_command(*, typescript: bool = False) -> list[str]:
    """Return the command of a parked node worker, as seen inside the box.

    Raises:
        RuntimeMissing: There is no Node on this machine, or none that strips types.
    """
    runtime = node.require_node(typescript=typescript)
    return [_inside(runtime), *node.PARKED_FLAGS, NODE_BOOTSTRAP]


def _inside(runtime: node.NodeRuntime) -> str:
    if runtime.path.is_relative_to("/usr"):
        return str(runtime.path)
    return f"{NODE_ROOT}/{runtime.path.relative_to(runtime.root)}"


def _template(interpreter: python.PythonRuntime, runtime: node.NodeRuntime | None, packages: str | None) -> Template:
    trees = [(str(tree), str(tree)) for tree in interpreter.trees]
    links = [(str(interpreter.executable), f"{_BIN}/{name}") for name in ("python", "python3")]
    for tree in python.system_trees():
        if tree.link is None:
            trees.append((str(tree.path), str(tree.path)))
        else:
            links.append((tree.link, str(tree.path)))
    trees += [(path, path) for path in _SHOWN_FROM_ETC if Path(path).exists()]
    if runtime is not None:
        trees.append((str(node.bootstrap_path()), NODE_BOOTSTRAP))
        links.append((_inside(runtime), f"{_BIN}/node"))
        if not runtime.path.is_relative_to("/usr"):
            trees.append((str(runtime.root), NODE_ROOT))
    if packages is not None:
        trees.append((packages, PACKAGES))
    # outer trees first, so that an inner one is not covered
    trees.sort(key=lambda tree: tree[1].count("/"))
    return Template(tuple(trees), tuple(links), tuple(map(str, interpreter.hidden)))
