"""Starts the zygote of a command's only run, and parks its worker, while the command still imports what else it needs.

Both take as long as the rest of Ringfence takes to import, and do it in other processes. So a command that knows that
it will run code asks for a zygote first of all, and for a worker as soon as what builds boxes is imported; the engine
of the same home takes them over, with what was found out about cgroups meanwhile. There is no guest in them: this is
how every parked worker comes to be, before anybody asks for it.
"""

from __future__ import annotations

import atexit
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ringfence.capability.limits import Limits
from ringfence.isolation.linux.cgroup_contract import CgroupHost
from ringfence.isolation.linux.cgroups import look_around
from ringfence.isolation.linux.outfit import outfit_in
from ringfence.isolation.native.fork_server import ForkServer
from ringfence.ports import WorkerSpec

if TYPE_CHECKING:
    from ringfence.isolation.native.backend import NativeBackend

_Closed = TypeVar("_Closed", CgroupHost, ForkServer)
_started: list[Ahead] = []


class Ahead:
    """A zygote without packages or preloaded modules that is being started, and the cgroups of this machine."""

    def __init__(self, home: Path) -> None:
        """Begin in a thread; whatever fails is told to whoever takes it over, as if it had failed for him."""
        self.home = home
        self.cgroups = look_around()
        self.server: Future[ForkServer] = Future()
        self.backend: NativeBackend | None = None
        threading.Thread(target=self._start, name="ringfence-ahead", daemon=True).start()

    def _start(self) -> None:
        try:
            counted = "memory" in self.cgroups.result().report.controllers
            server = ForkServer(outfit_in(self.home, WorkerSpec(), counted))
        except BaseException as error:  # noqa: BLE001  whoever waits for it gets it
            self.server.set_exception(error)
        else:
            self.server.set_result(server)
        threading.Event().wait()  # a launcher dies with the thread that made it

    def park(self) -> None:
        """Begin the worker of a run that asks for nothing of its own."""
        from ringfence.isolation.native.backend import backend_in  # not at the top: the zygote comes first

        self.backend = backend_in(self.home, self.home, Limits(), self)
        self.backend.begin(WorkerSpec())

    def backend_for(self, files_home: Path, limits: Limits) -> NativeBackend:
        """Return the backend that has all of it: the one with the worker, if it was made for the same."""
        from ringfence.isolation.native.backend import backend_in

        if self.backend is not None and (files_home, limits) == (self.home, Limits()):
            return self.backend
        if self.backend is not None:
            self.backend.close()
            return backend_in(self.home, files_home, limits)
        return backend_in(self.home, files_home, limits, self)

    def let_go(self) -> None:
        """Leave nothing of it behind; waits until it has started."""
        if self.backend is not None:
            self.backend.close()
            return
        _close(self.server)
        _close(self.cgroups)


def start(home: Path) -> None:
    """Begin to start the zygote of a run in `home`, and end it with the process if nobody takes it over."""
    _started.append(Ahead(home))
    atexit.register(_let_go_of_all)


def park() -> None:
    """Begin the workers of the runs for which a zygote was started; brings what builds boxes."""
    for each in _started:
        each.park()


def take(home: Path) -> Ahead | None:
    """Return what was started for a run in `home`, if it was; it is the caller's now."""
    for each in _started:
        if each.home == home:
            _started.remove(each)
            return each
    return None


def _let_go_of_all() -> None:
    while _started:
        _started.pop().let_go()


def _close(coming: Future[_Closed]) -> None:
    if coming.exception() is None:
        coming.result().close()
