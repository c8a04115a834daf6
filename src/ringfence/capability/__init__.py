"""What a run may use and how much of it; a kind of capability is imported when its name is first used here."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ringfence.capability.browser import BrowserUse
    from ringfence.capability.code import CodeRun
    from ringfence.capability.exact import PortOpen, SecretUse, SysGpu, TmpUse
    from ringfence.capability.fs import FsHost, FsList, FsRead, FsWrite
    from ringfence.capability.net import NetHttp
    from ringfence.capability.process import ProcExec

__all__ = [
    "BrowserUse",
    "CodeRun",
    "FsHost",
    "FsList",
    "FsRead",
    "FsWrite",
    "NetHttp",
    "PortOpen",
    "ProcExec",
    "SecretUse",
    "SysGpu",
    "TmpUse",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ringfence.capability' has no attribute {name!r}")
    from ringfence.capability.form import kind_of

    value = globals()[name] = kind_of(name)
    return value
