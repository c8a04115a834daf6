"""The error of a wrong command line, apart from the parser so that `--help` does not pay for one."""

from __future__ import annotations

from ringfence.errors import InvalidRequest


class UsageError(InvalidRequest):
    """The command line itself is wrong; nothing ran."""

    default_reason = "usage"
