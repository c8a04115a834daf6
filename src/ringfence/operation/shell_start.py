"""What the shell of an AIO session reads before a command: it tells, at the end, which variables the command left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ringfence.operation.code import CodeRun

NAME: Final = ".aio-session"
VARIABLE: Final = "BASH_ENV"
PATH: Final = f"/workspace/inputs/{NAME}"
TEXT: Final = b"""unset BASH_ENV
_ringfence_began=$(env -0 | base64 -w0)
trap 'printf "\\033]7711;%s;%s\\007" "$_ringfence_began" "$(env -0 | base64 -w0)" 2>/dev/null >/dev/tty' EXIT
"""


def is_ours(operation: CodeRun) -> bool:
    """Whether the shell of this run reads exactly our own text first; inputs are read-only in a box."""
    return operation.env.get(VARIABLE) == PATH and operation.inputs.get(NAME) == TEXT
