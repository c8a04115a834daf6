"""The zygote: a warmed, empty-handed interpreter inside the template root that forks the workers and buries them.

It was exec'ed with an empty environment, is pid 1 of a pid namespace of its own, and never runs guest code. It is the
parent of every worker, so it alone learns how a guest ended, and no guest can see, signal or trace it. When it dies,
the kernel takes every run with it; when the host goes away, its control channel ends and so does it.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import select
import signal
import socket

from ringfence.isolation.linux import channel, interpreter, kernel, sealed
from ringfence.isolation.native import settle, template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


_MAKES_A_KIND = (
    *("disk_bytes", "inodes", "open_files", "file_bytes", "pids", "own_pids"),
    *("layered", "entrances", "anchor", "exec", "terminal", "egress"),
)
_MOST_KINDS = 16
_FILLERS = 8


class Run:
    """A box that is in use: its idle init, its worker, and whom to tell about the end."""

    def __init__(self, init: int, worker: int, status: int, waiting: select.epoll) -> None:
        """Open and watch now what the end of the run will need: it must be told also when there is no room for more."""
        self.init = init
        self.worker = worker
        self.told = False
        self._opened: list[int] = []
        try:
            self.status = self._keep(os.dup(status))
            self.init_pidfd = self._keep(os.pidfd_open(init))
            self.worker_pidfd = self._keep(os.pidfd_open(worker))
            self._children = self._keep(os.open(f"/proc/{init}/task/{init}/children", os.O_RDONLY | os.O_CLOEXEC))
            waiting.register(self.worker_pidfd, select.EPOLLIN)
            # never the first to wake us: pid 1 is dead only when everybody of its namespace has been waited for
            waiting.register(self.init_pidfd, select.EPOLLIN)
        except OSError:
            self.release()
            raise

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd

    def tell(self) -> None:
        """Take the worker's end from the kernel and pass it on."""
        _, wait_status, usage = os.wait4(self.worker, 0)
        words = sealed.farewell(wait_status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss, self.left())
        with contextlib.suppress(OSError):  # the host no longer listens
            os.write(self.status, words)
        self.told = True

    def left(self) -> bytes:
        """Return the pids of the init's children, which all that lost its parent has become."""
        return os.pread(self._children, 1024, 0)

    def release(self) -> None:
        """Let go of the descriptors."""
        for fd in self._opened:
            os.close(fd)


def main(control: socket.socket, config: dict[str, Any], trees: list[int]) -> NoReturn:
    """Become the zygote and serve until the host is gone."""
    kernel.die_with_parent(signal.SIGKILL)
    kernel.unshare(kernel.CLONE_NEWNS)
    template.enter(config, trees)
    sealing = sealed.Sealing(config)
    # before anything is preloaded: a package's code runs when it is imported
    kernel.load_filter(binascii.a2b_base64(config["base_filter"]))
    interpreter.prepare(config)
    serving = Zygote(control, sealing)
    channel.send(control, {"ready": True})
    serving.serve()


class Zygote:
    """Forks on request and reaps on death, one thing after the other."""

    def __init__(self, control: socket.socket, sealing: sealed.Sealing) -> None:
        """Watch the host's channel from now on."""
        self._control = control
        self._sealing = sealing
        self._own_processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._waiting = select.epoll()
        self._waiting.register(control, select.EPOLLIN)
        self._runs: dict[int, Run] = {}
        """By the pidfd of its worker, while that lives, and by that of its init."""
        self._settlings: dict[tuple[str, ...], settle.Settling] = {}
        # so many are our own that what is received is above every number a worker gives its own
        self._fillers = [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC) for _ in range(_FILLERS)]

    def serve(self) -> NoReturn:
        """Work until the host's end is closed."""
        while True:
            for fd, _ in self._waiting.poll():
                if fd in self._runs:
                    self._step(fd, self._runs.pop(fd))
                    continue
                try:
                    spec, fds = channel.receive(self._control, channel.SHORT)
                except OSError as error:
                    # no room for what came with it: whoever asked takes another zygote, and the runs of this one go on
                    channel.send(self._control, {"failed": str(error)})
                    continue
                if spec is None:
                    os._exit(0)
                self._spawn(spec, fds)

    def _spawn(self, spec: dict[str, Any], fds: list[int]) -> None:
        ends = settle.Endpoints(fds)
        started: list[int] = []
        try:
            settling = self._settling(spec)
            settling.prepare(spec, ends)
            kernel.unshare(kernel.CLONE_NEWPID)
            try:
                started.append(os.posix_spawn(template.IDLE, ["init"], {}))
                worker = os.fork()
                if worker == 0:
                    settling.main(spec)
                started.append(worker)
            finally:
                kernel.setns(self._own_processes, kernel.CLONE_NEWPID)
            run = Run(started[0], worker, ends.status, self._waiting)
            try:
                channel.send(self._control, {"id": spec["id"]}, [run.init_pidfd])
            except OSError:
                run.release()
                raise
        except OSError as error:
            _end(started)
            channel.send(self._control, {"id": spec["id"], "failed": str(error), "errno": error.errno})
        else:
            self._runs[run.worker_pidfd] = self._runs[run.init_pidfd] = run
            # what the end of a run will touch is copied now, after the fork, so that nobody waits for it then
            sealed.farewell(0, 0.0, 0.0, 0, run.left())
        finally:
            for fd in fds:
                os.close(fd)

    def _settling(self, spec: dict[str, Any]) -> settle.Settling:
        """Return the steps for workers like this one, listed once."""
        key = tuple(str(spec[name]) for name in _MAKES_A_KIND)
        settling = self._settlings.get(key)
        if settling is None:
            if len(self._settlings) >= _MOST_KINDS:
                self._settlings.clear()
            settling = self._settlings[key] = settle.Settling(spec, self._sealing)
        return settling

    def _step(self, pidfd: int, run: Run) -> None:
        """Take note of a death: the worker's first, which the host is told; then the init's, whom the host kills."""
        over = run.told
        if not over:
            run.tell()
        # by hand: the host has a copy of the descriptor, so closing ours would not do it
        self._waiting.unregister(pidfd)
        if over:
            os.waitpid(run.init, 0)
            run.release()


def _end(started: list[int]) -> None:
    """Bury the processes of a box that could not be finished; the init last, since it waits for the others."""
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    for pid in reversed(started):
        os.waitpid(pid, 0)
