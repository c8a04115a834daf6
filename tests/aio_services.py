"""Small AIO services in threads of this process, started and ended as a pool asks for it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tests import aio_service

from ringfence.isolation.aio.starting import Instance


@dataclass
class Served:
    """An instance in a thread of this process."""

    service: aio_service.AIOService
    ending: contextlib.ExitStack
    ended: bool = False

    @property
    def base_url(self) -> str:
        return self.service.url

    def is_running(self) -> bool:
        return not self.ended

    def last_words(self) -> str:
        return ""

    def destroy(self) -> None:
        if not self.ended:
            self.ended = True
            self.ending.close()


@dataclass
class Services:
    """Starts them, and remembers."""

    home: Path
    has_workspace: bool = False
    started: list[Served] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.gate.set()

    def __call__(self) -> Instance:
        assert self.gate.wait(30)
        ending = contextlib.ExitStack()
        with self.lock:
            number = len(self.started)
            served = Served(ending.enter_context(self._serving(number)), ending)
            self.started.append(served)
        return served

    def _serving(self, number: int) -> contextlib.AbstractContextManager[aio_service.AIOService]:
        return aio_service.running(self.home / str(number), has_workspace=self.has_workspace)

    @property
    def alive(self) -> int:
        return sum(not served.ended for served in self.started)
