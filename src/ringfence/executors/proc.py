"""Starts one program with exactly the arguments it was given: in the box, found by its own `PATH`, read by no shell.

The program takes the place of a parked Python worker, so it is held, measured and buried as code is. What it gets of an
environment is the box's: nothing of the host's, and none of what makes Python behave.
"""

from __future__ import annotations

from typing import Final

from ringfence import operation as operations
from ringfence.authority.profile import Profile
from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import ProcExec
from ringfence.outcome import ExecutionResult
from ringfence.ports import ExecCtx, Executor

# 127 and 126 are what every shell says of a program that is not there, or cannot be started.
_PROGRAM: Final = """\
import os, signal, sys
kept = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR")
environment = {name: os.environ[name] for name in kept if name in os.environ}
argv = sys.argv[1:]
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
try:
    os.execvpe(argv[0], argv, environment)
except OSError as error:
    os.write(2, f"{argv[0]}: {error.strerror}\\n".encode())
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


class ProcExecutor:
    """Implements `ports.Executor` for programs, over whatever runs code in a box."""

    def __init__(self, code: Executor[CodeRun, ExecutionResult]) -> None:
        """Start programs where `code` runs Python."""
        self._code = code

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "proc"

    async def execute(self, ctx: ExecCtx, operation: ProcExec) -> ExecutionResult:
        """Start the program, and stay with it until it and everything it started is gone.

        Raises:
            InvalidRequest: An argument is none that a program could be given, or there is no time at all.
        """
        job = CodeRun(Language.PYTHON, _PROGRAM, args=(operation.tool, *operation.args), session_id=ctx.session_id)
        operations.check(job)
        return await self._code.execute(replace(ctx, profile=_hurried(ctx, operation.timeout_ms)), job)


def _hurried(ctx: ExecCtx, timeout_ms: int | None) -> Profile:
    """Return the profile with the operation's own time, where that is less."""
    profile = ctx.profile
    if timeout_ms is None:
        return profile
    if timeout_ms <= 0:
        raise InvalidRequest("timeout_ms must be greater than 0", reason="invalid_limit")
    wall = min(profile.limits.wall_seconds, timeout_ms / 1000)
    return replace(profile, limits=replace(profile.limits, wall_seconds=wall))
