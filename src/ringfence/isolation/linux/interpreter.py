"""Makes a bare interpreter ready to be a guest's: its path, its preloaded modules, as few traces of us as possible."""

from __future__ import annotations

import gc
import os
import sys

from ringfence.isolation import worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def prepare(config: dict[str, Any]) -> None:
    """Import, warm and freeze, so that forked children share as many pages as possible.

    Raises:
        RuntimeError: A preloaded module started a thread; a forked copy would inherit its held locks.
    """
    os.environ.update(config["environment"])
    sys.path[:] = ["", *(path for path in sys.path if path not in ("", config["source"])), *config["sys_path"]]
    # a guest that is killed has then shown every line it finished
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for module in config["preload"]:
        __import__(module)
    worker.warm()
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError(f"preloading {config['preload']} started threads")
    for name in [name for name in sys.modules if name.partition(".")[0] == "ringfence"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
