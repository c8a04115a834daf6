"""Signals that end the command: the first unwinds the run, so that the guest dies with it and nothing is left."""

from __future__ import annotations

import signal
from types import FrameType

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The command was told to stop; `exit_code` is 128 plus the signal, as a shell reports it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class Interrupts:
    """Turns ending signals into `Interrupted` in the main thread; a second one kills outright."""

    def __init__(self) -> None:
        self._pipe_closed = False

    def install(self) -> None:
        """Take over the ending signals, except those the caller had ignored (nohup)."""
        for signum in _ENDING_SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._unwind)

    def pipe_closed(self) -> None:
        """End the run because nobody reads its output any more; callable from any thread."""
        import threading

        self._pipe_closed = True
        ident = threading.main_thread().ident
        if ident is not None:
            # To the main thread itself: one that waits on a lock wakes only for a signal of its own. Not SIGPIPE:
            # catching that would also end the run when a dying worker closes its socket.
            signal.pthread_kill(ident, signal.SIGTERM)

    def _unwind(self, signum: int, _frame: FrameType | None) -> None:
        for ending in _ENDING_SIGNALS:
            # Guests die with this process, so a person who insists may end it at once.
            signal.signal(ending, signal.SIG_DFL)
        raise Interrupted(signal.SIGPIPE if self._pipe_closed else signum)
