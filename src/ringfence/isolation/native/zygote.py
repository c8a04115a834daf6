"""The zygote: a warmed, empty-handed interpreter inside the template root that forks one init per run.

It was exec'ed with an empty environment, is pid 1 of a pid namespace of its own, and never runs guest code. When it
dies, the kernel takes every run with it; when the host goes away, its control channel ends and so does it.
"""

from __future__ import annotations

import binascii
import os
import signal
import socket

from ringfence.isolation.linux import channel, interpreter, kernel, sealed
from ringfence.isolation.native import box, init, template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def main(control: socket.socket, config: dict[str, Any], trees: list[int]) -> NoReturn:
    """Become the zygote and serve spawn requests until the host is gone."""
    kernel.die_with_parent(signal.SIGKILL)
    # children are never waited for here: the host holds a pidfd of each
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.unshare(kernel.CLONE_NEWNS)
    template.enter(config, trees)
    sealing = sealed.Sealing(config)
    interpreter.prepare(config)
    kernel.load_filter(binascii.a2b_base64(config["base_filter"]))
    own = box.own_namespaces()
    channel.send(control, {"ready": True})
    while True:
        spec, fds = channel.receive(control)
        if spec is None:
            os._exit(0)
        _spawn(spec, fds, control, sealing, own)


def _spawn(
    spec: dict[str, Any], fds: list[int], control: socket.socket, sealing: sealed.Sealing, own: dict[str, int]
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
