"""Makes a bare interpreter ready to be a guest's: its path, its preloaded modules, as few traces of us as possible."""

from __future__ import annotations

import _sitebuiltins
import builtins
import gc
import os
import signal
import sys

from ringfence.isolation import worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PreloadFailed(RuntimeError):
    """A module cannot be preloaded; that is the request's fault, not the machine's."""


def prepare(config: dict[str, Any]) -> None:
    """Import, warm and freeze, so that forked children share as many pages as possible.

    Raises:
        PreloadFailed: A module cannot be imported or started a thread, whose held locks a forked copy would inherit.
    """
    _forget_signals()
    os.environ.update(config["environment"])
    # a guest's own directory comes first, and not before it runs: `worker.become_guest`
    sys.path[:] = [*(path for path in sys.path if path not in ("", config["source"])), *config["sys_path"]]
    # a guest that is killed has then shown every line it finished
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # what `site` gives an interpreter; it does not run here, because it would look for packages on the host
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    for module in config["preload"]:
        _preload(module)
    worker.warm()
    for name in [name for name in sys.modules if name.partition(".")[0] == "ringfence"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def _forget_signals() -> None:
    """Undo what the host blocks or ignores, which an exec does not: whoever ignores SIGCHLD cannot wait for a child."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # those an interpreter ignores by itself
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _preload(module: str) -> None:
    try:
        __import__(module)
    except BaseException as error:  # noqa: BLE001  a module may raise anything
        raise PreloadFailed(f"preload: importing {module} failed: {type(error).__name__}: {error}") from None
    if len(os.listdir("/proc/self/task")) != 1:
        raise PreloadFailed(f"preload: importing {module} starts threads, so it cannot be shared by forking")
