"""Engines shared by every manager with the same settings, and ended with the last of them or with the process."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from functools import partial

from ringfence import wiring

_lock = threading.Lock()
_engines: dict[wiring.Settings, list[Hold]] = {}
_kept: dict[wiring.Settings, Hold] = {}


class Hold:
    """A share of an engine; the engine lives as long as somebody holds it."""

    def __init__(self, settings: wiring.Settings, engine: wiring.Engine) -> None:
        """Made by `hold`."""
        self._settings = settings
        self._pid = os.getpid()
        self.engine = engine

    @property
    def inherited(self) -> bool:
        """Whether this process has it from a fork only: the engine, its threads and workers are the parent's."""
        return self._pid != os.getpid()

    async def let_go(self, scope: str) -> None:
        """End what was started by it, give back the temporary space of `scope`, and then the share, whatever fails."""
        if self.inherited:  # then all of that is the parent's, who may still need it
            self.release()
            return
        from ringfence.finishing import all_finished  # not at the top: a command ends with its engine

        await all_finished(
            partial(self.engine.end_processes, self),
            partial(asyncio.to_thread, self.engine.release, scope),
            partial(asyncio.to_thread, self.release),
        )

    def release(self) -> None:
        """Give the share back; the last one ends the engine."""
        with _lock:
            holds = _engines.get(self._settings, [])
            if self not in holds:
                return
            holds.remove(self)
            if holds:
                return
            del _engines[self._settings]
        self.engine.close()


def hold(settings: wiring.Settings) -> Hold:
    """Return a share of the engine with these settings, starting it if it is the first."""
    with _lock:
        holds = _engines.setdefault(settings, [])
        share = Hold(settings, holds[0].engine if holds else wiring.build(settings))
        holds.append(share)
        return share


def keep(settings: wiring.Settings) -> Hold:
    """Return the share that the one-line API holds until the process ends."""
    with _lock:
        kept = _kept.get(settings)
    if kept is None:
        kept = _kept.setdefault(settings, hold(settings))
    return kept


def _end_all() -> None:
    with _lock:
        ending = [holds[0].engine for holds in _engines.values() if holds]
        _engines.clear()
        _kept.clear()  # whoever runs something after this, as another exit function may, gets a fresh one
    for engine in ending:
        engine.close()


def _forget_in_child() -> None:
    """A forked child has no starter threads, and the workers are its parent's."""
    global _lock
    _lock = threading.Lock()
    _engines.clear()
    _kept.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_in_child)
