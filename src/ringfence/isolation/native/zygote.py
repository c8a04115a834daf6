"""The zygote: a warmed, empty-handed interpreter inside the template root that has workers forked and buries them.

It was exec'ed with an empty environment, is pid 1 of a pid namespace of its own, and never runs guest code. Its molds
are the parents of every worker, so it alone learns how a guest ended, and no guest can see, signal or trace it. When it
dies, the kernel takes every run with it; when the host goes away, its control channel ends and so does it.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import select
import signal
import socket

from ringfence.isolation.linux import channel, interpreter, kernel, sealed
from ringfence.isolation.native import mold, settle, template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


_MAKES_A_KIND = (
    *("disk_bytes", "inodes", "open_files", "file_bytes", "pids", "own_pids"),
    *("layered", "entrances", "anchor", "exec", "terminal", "egress"),
)
_MOST_KINDS = 16


class Run:
    """A box that is in use: its idle init, its worker, and whom to tell about the end."""

    def __init__(self, init: int) -> None:
        """Begin with the init, in the pid namespace that the next child of this process is born in."""
        self.init = init
        self.told = False
        self._born: tuple[mold.Mold, int] | None = None
        self._opened: list[int] = []

    def populate(self, by: mold.Mold, spec: dict[str, Any], status: int, inside: list[int]) -> None:
        """Have the worker forked, with copies of the descriptors `inside`; its end will be told on `status`.

        Whatever that will need is opened now: it must be told also when no more can be opened.
        """
        self.status = self._keep(os.dup(status))
        self.init_pidfd = self._keep(os.pidfd_open(self.init))
        children = f"/proc/{self.init}/task/{self.init}/children"
        self._children = self._keep(os.open(children, os.O_RDONLY | os.O_CLOEXEC))
        # not by the init's pidfd: until it has begun its program it counts as this process, which is closed to others
        processes = os.open("/proc/self/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
        try:
            worker = by.birth(spec, processes, inside)
        finally:
            os.close(processes)
        self._born = by, worker
        self.worker_pidfd = self._keep(os.pidfd_open(worker))

    def _keep(self, fd: int) -> int:
        self._opened.append(fd)
        return fd

    def tell(self) -> None:
        """Take the worker's end from its mold and pass it on."""
        words = sealed.farewell(*self._reap(), self.left())
        with contextlib.suppress(OSError):  # the host no longer listens
            os.write(self.status, words)
        self.told = True

    def _reap(self) -> tuple[int, float, float, int]:
        if self._born is None:
            raise ProcessLookupError("a run without a worker")
        by, worker = self._born
        self._born = None
        return by.reap(worker)

    def undo(self) -> None:
        """Bury the processes of a box that could not be finished; the init last, since it waits for the other."""
        os.kill(self.init, signal.SIGKILL)
        if self._born is not None:
            self._reap()
        os.waitpid(self.init, 0)
        self.release()

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
        """By the pidfd that tells of the next thing to happen to the run."""
        self._molds: dict[tuple[str, ...], mold.Mold] = {}

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
        status, *inside = fds
        try:
            run = self._start(spec, status, inside)
        except OSError as error:
            channel.send(self._control, {"id": spec["id"], "failed": str(error), "errno": error.errno})
        else:
            self._expect(run, run.worker_pidfd)
            channel.send(self._control, {"id": spec["id"]}, [run.init_pidfd])
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, spec: dict[str, Any], status: int, inside: list[int]) -> Run:
        by = self._mold(spec)
        kernel.unshare(kernel.CLONE_NEWPID)
        try:
            run = Run(os.posix_spawn(template.IDLE, ["init"], {}))
            try:
                run.populate(by, spec, status, inside)
            except OSError:
                run.undo()
                raise
        finally:
            kernel.setns(self._own_processes, kernel.CLONE_NEWPID)
        return run

    def _mold(self, spec: dict[str, Any]) -> mold.Mold:
        """Return the mold of workers like this one, cast for the first of them."""
        key = tuple(str(spec[name]) for name in _MAKES_A_KIND)
        cast = self._molds.get(key)
        if cast is None:
            if len(self._molds) >= _MOST_KINDS:
                for old in self._molds.values():
                    old.retire()
                self._molds.clear()
            cast = self._molds[key] = mold.Mold(settle.Settling(spec, self._sealing), spec)
        return cast

    def _expect(self, run: Run, pidfd: int) -> None:
        self._runs[pidfd] = run
        self._waiting.register(pidfd, select.EPOLLIN)

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
        else:
            self._expect(run, run.init_pidfd)
