"""The zygote: a warmed, empty-handed interpreter inside the template root that forks one init per run.

It was exec'ed with an empty environment, is pid 1 of a pid namespace of its own, and never runs guest code. When it
dies, the kernel takes every run with it; when the host goes away, its control channel ends and so does it.
"""

from __future__ import annotations

import base64
import gc
import importlib
import os
import signal
import socket
import sys
from typing import Any, NoReturn

from ringfence.isolation import worker
from ringfence.isolation.native import box, channel, init, kernel, template


def main(control: socket.socket, config: dict[str, Any], trees: list[int]) -> NoReturn:
    """Become the zygote and serve spawn requests until the host is gone."""
    kernel.die_with_parent(signal.SIGKILL)
    # children are never waited for here: the host holds a pidfd of each
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.unshare(kernel.CLONE_NEWNS)
    template.enter(template.Template.from_message(config["template"]), trees)
    sealing = init.Sealing(
        seal_filter=base64.b64decode(config["seal_filter"]),
        init_filter=base64.b64decode(config["init_filter"]),
        landlock_abi=config["landlock_abi"],
        last_capability=_last_capability(),
    )
    _prepare_interpreter(config)
    kernel.load_filter(base64.b64decode(config["base_filter"]))
    own = box.own_namespaces()
    channel.send(control, {"ready": True})
    while True:
        spec, fds = channel.receive(control)
        if spec is None:
            os._exit(0)
        _spawn(spec, fds, control, sealing, own)


def _last_capability() -> int:
    with open("/proc/sys/kernel/cap_last_cap", "rb") as file:
        return int(file.read())


def _prepare_interpreter(config: dict[str, Any]) -> None:
    """Import, warm and freeze, so that the children share as many pages as possible."""
    os.environ.update(config["environment"])
    sys.path[:] = ["", *(path for path in sys.path if path not in ("", config["source"])), *config["sys_path"]]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for module in config["preload"]:
        importlib.import_module(module)
    worker.warm()
    # a forked copy of a process with threads is a process with held locks
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError(f"preloading {config['preload']} started threads")
    for name in [name for name in sys.modules if name.partition(".")[0] == "ringfence"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def _spawn(
    spec: dict[str, Any], fds: list[int], control: socket.socket, sealing: init.Sealing, own: dict[str, int]
) -> None:
    ends, lower = init.Endpoints(*fds[:5]), fds[5] if len(fds) > 5 else None
    try:
        try:
            directory = box.build(spec, lower)
            fds.append(directory)
            pid = os.fork()
            if pid == 0:
                init.main(spec, ends, sealing)
            pidfd = os.pidfd_open(pid)
            fds.append(pidfd)
        finally:
            box.leave(own)
    except OSError as error:
        channel.send(control, {"id": spec["id"], "failed": str(error), "errno": error.errno})
    else:
        channel.send(control, {"id": spec["id"]}, [pidfd, directory])
    finally:
        for fd in fds:
            os.close(fd)
