"""Imports modules of the standard library without what they import for things that no run of the command does."""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def lightly(*modules: str) -> None:
    """Import modules with others standing in for what they bring; those are there for whoever asks.

    `ssl` takes as long as all the rest and may be missing anyway; `inspect` brings the parser and the disassembler,
    `traceback` and `linecache` the tokenizer, `logging` both and templates; `urllib.parse` has what a path needs to be
    a URL; `gettext` looks on the disk for a catalogue at each of argparse's few words, and finds none; `locale` has the
    encoding of every language. The others are what asyncio has for TLS and for connecting to hosts.
    """
    later = ("inspect", "linecache", "locale", "asyncio.sslproto", "asyncio.staggered")
    standing_in: dict[str, Any] = {"ssl": None} | {name: _Later(name) for name in later}
    standing_in |= {name: _Named(name) for name in ("traceback", "urllib.parse")}
    standing_in |= {"gettext": _Untranslated("gettext"), "logging": _Loggers("logging")}
    added = {name: one for name, one in standing_in.items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        for module in modules:
            _import(module)
    finally:
        for name, one in added.items():
            if name in sys.modules and sys.modules[name] is one:
                del sys.modules[name]


def _import(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


class _Later(ModuleType):
    """Stands in a module where another was imported, and imports that one when it is asked for something."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:  # asked at once, while it still stands in
            del sys.modules[self.__name__]
        return getattr(_import(self.__name__), name)


class _Named(ModuleType):
    """Has whatever is taken from it by name, and imports the module of it when that is used."""

    def __getattr__(self, name: str) -> _Taken:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Taken(self.__name__, name)


class _Taken:
    """A function or class that is imported when it is called or asked for something."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(_import(self._module), self._name)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_import(self._module), self._name), name)


class _Untranslated(ModuleType):
    """Says what it is given, as `gettext` does without a catalogue."""

    @staticmethod
    def gettext(message: str) -> str:
        return message

    @staticmethod
    def ngettext(one: str, many: str, count: int) -> str:
        return one if count == 1 else many


class _Loggers(_Later):
    """Has the loggers of modules that seldom log."""

    DEBUG = 10

    @staticmethod
    def getLogger(name: str) -> _Logger:  # noqa: N802  the name that modules call
        return _Logger(name)


class _Logger:
    """A logger that imports what logs when there is something to say."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, *args: Any, **kwargs: Any) -> None:
        """Say it where somebody may have asked for it; before `logging` was imported nobody can have."""
        if "logging" in sys.modules:
            self.__getattr__("debug")(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(_import("logging").getLogger(self._name), name)
