"""Decides what a box of this machine shows: which trees of the host, under which names, and the filters it runs under."""

from __future__ import annotations

import os
from pathlib import Path

from ringfence.isolation.native import kernel
from ringfence.isolation.native.fork_server import ServerConfig
from ringfence.isolation.native.seccomp import filters
from ringfence.isolation.native.template import Template
from ringfence.runtimes import node, packages, python

_PACKAGES = str(packages.BOX_PATH)
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


def server_config(environment_path: str | None, preload: tuple[str, ...], node_cache: Path) -> ServerConfig:
    """Return what a zygote with this package environment is made from.

    Raises:
        IsolationUnavailable: The interpreter cannot be shown to the guest, or the machine is unknown.
    """
    interpreter = python.python_runtime()
    runtime = node.find_node(cache=node_cache)
    machine = os.uname().machine
    environment = dict(_ENVIRONMENT)
    if environment_path is not None:
        environment["PYTHONPATH"] = _PACKAGES
    return ServerConfig(
        executable=str(interpreter.executable),
        template=_template(interpreter, runtime, environment_path),
        base_filter=filters.base_filter(machine),
        seal_filter=filters.seal_filter(machine),
        init_filter=filters.init_filter(machine),
        landlock_abi=kernel.landlock_abi(),
        environment=tuple(environment.items()),
        sys_path=(_PACKAGES,) if environment_path is not None else (),
        preload=preload,
    )


def _template(interpreter: python.PythonRuntime, runtime: node.NodeRuntime | None, environment_path: str | None) -> Template:
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
    # outer trees first, so that an inner one is not covered
    trees.sort(key=lambda tree: tree[1].count("/"))
    return Template(tuple(trees), tuple(links), tuple(map(str, interpreter.hidden)))
