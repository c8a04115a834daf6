"""Keep the warnings that judged code provokes out of the host's own output and error handling."""

from __future__ import annotations

import re
import warnings

# What `ast.parse` calls the program it reads; the filter below knows it by this name alone.
ASSESSED = "<assessed by ringfence>"


def hush_assessed_code() -> None:
    """Ignore warnings about the source called `ASSESSED`: an odd escape in it is the guest's affair.

    A filter of its own instead of `catch_warnings`, which would swap the filters of every thread.
    """
    _ignore(("ignore", None, Warning, re.compile(re.escape(ASSESSED) + r"\Z"), 0))


def hush_parser_deadline() -> None:
    """Ignore the note that the parser's deadline is to be replaced by a callback, which crashes (ADR 13)."""
    message = re.compile(r"Use the progress_callback in parse\(\)\Z", re.IGNORECASE)
    _ignore(("ignore", message, DeprecationWarning, None, 0))


def _ignore(entry: tuple[str, re.Pattern[str] | None, type[Warning], re.Pattern[str] | None, int]) -> None:
    # Looked up each time: whoever resets the filters, as every test runner does, resets this one too.
    if entry not in warnings.filters:
        _, message, category, module, line = entry
        warnings.filterwarnings(
            "ignore", message.pattern if message else "", category, module.pattern if module else "", line
        )
