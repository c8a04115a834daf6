"""Regular expressions that are cheap to import: one is compiled when something is first held against it.

`ringfence run` imports thirty and uses a few; to compile one takes as long as to import a small module. To type
checkers `pattern` is `re.compile`, and at run time what it returns has all that a compiled expression has.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

__all__ = ["pattern"]


class _Uncompiled:
    def __init__(self, text: str, flags: re.RegexFlag | int = 0) -> None:
        self._said = text, flags

    def __getattr__(self, name: str) -> Any:
        found = getattr(re.compile(*self._said), name)
        setattr(self, name, found)  # asked for once: the next time it is simply there
        return found


if TYPE_CHECKING:
    from re import compile as pattern
else:
    pattern = _Uncompiled
