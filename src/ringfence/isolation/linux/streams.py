"""The numbers 0, 1 and 2, which whatever is opened next gets when an application has closed them."""

from __future__ import annotations

import os

_STANDARD_ERROR = 2


def occupy() -> None:
    """Put /dev/null on those that are closed.

    A channel of ours on such a number would be lost in a child, which gets streams there, and would carry to a box
    whatever a library of the application prints.
    """
    while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= _STANDARD_ERROR:
        pass
    os.close(fd)
