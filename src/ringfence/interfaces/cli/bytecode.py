"""Imports what is compiled already with fewer questions to the file system and to the import system itself.

A run imports three hundred modules. For each of them Python asks every finder, every directory of its path and every
kind of file that a module may be; here it is one `stat` and one read. What this does not find as expected (no bytecode,
or of another source, another Python, another place) is left to whoever is asked next, as if it were not there.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, ModuleType

_STANDARD = os.__file__.rpartition("/")[0]
_ENDING = f".{sys.implementation.cache_tag}.pyc"
_BY_TIME = MAGIC_NUMBER + bytes(4)
"""How bytecode begins that holds as long as the time and the size of its source, which follow, are these."""
_HEADER_BYTES = 16
_PIECE_BYTES = 1 << 16
"""Enough for most; a buffer of twice as much is mapped and unmapped, which takes longer than to read one."""


def read_directly() -> None:
    """Have this process import its modules so, where nobody has said that it should do otherwise."""
    elsewhere = sys.pycache_prefix is not None or sys.flags.optimize or sys.flags.dev_mode
    if not elsewhere and PathFinder in sys.meta_path and not any(each is Direct for each in sys.meta_path):
        sys.meta_path.insert(sys.meta_path.index(PathFinder), Direct)


class Direct:
    """Finds modules of Ringfence and of the standard library."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where a module is and what it is, with its code in hand."""
        top = name.partition(".")[0]
        if path is None:
            # as the path says: what stands before the standard library there is an archive of it, or wants to be asked
            if top not in sys.stdlib_module_names or _STANDARD not in sys.path[:2]:
                return None
            place = f"{_STANDARD}/{name}"
        elif (top == "ringfence" or top in sys.stdlib_module_names) and len(path) == 1:
            place = f"{path[0]}/{name.rpartition('.')[2]}"
        else:
            return None
        try:
            return _spec(name, place)
        except (OSError, ValueError, EOFError, TypeError):
            return None


def _spec(name: str, place: str) -> ModuleSpec | None:
    is_package = False
    try:
        source = f"{place}.py"
        found = os.stat(source)  # noqa: PTH116  before anything as heavy as paths is imported
        directory, _, last = place.rpartition("/")
    except FileNotFoundError:
        source = f"{place}/__init__.py"
        found = os.stat(source)  # noqa: PTH116
        directory, last, is_package = place, "__init__", True
    cached = f"{directory}/__pycache__/{last}{_ENDING}"
    fd = os.open(cached, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = piece = os.read(fd, _PIECE_BYTES)
        while len(piece) == _PIECE_BYTES:
            piece = os.read(fd, _PIECE_BYTES)
            content += piece
    finally:
        os.close(fd)
    if not content.startswith(_BY_TIME + _stamp(found)):
        return None
    code = marshal.loads(memoryview(content)[_HEADER_BYTES:])  # noqa: S302  as the import system does
    if getattr(code, "co_filename", None) != source:  # compiled under another name, which its errors would tell
        return None
    spec = ModuleSpec(name, _Read(name, source, code), origin=source, is_package=is_package)
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.append(directory)
    spec.has_location = True
    spec.cached = cached
    return spec


def _stamp(source: os.stat_result) -> bytes:
    return b"".join((int(each) & 0xFFFFFFFF).to_bytes(4, "little") for each in (source.st_mtime, source.st_size))


class _Read(SourceFileLoader):
    """Loads a module whose code is there already; for everything else it is the loader of every source file."""

    def __init__(self, name: str, source: str, code: CodeType) -> None:
        super().__init__(name, source)
        self._code: CodeType | None = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return it once; whoever asks later gets what the file says by then."""
        code, self._code = self._code, None
        return super().get_code(fullname) if code is None else code
