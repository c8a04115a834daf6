"""Asks a box to look through a project's files: patterns are the caller's, and are run where its code is run."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from ringfence.errors import ExecutionFailed, InvalidRequest, TimedOut
from ringfence.outcome import Status
from ringfence.workspaces.refusals import refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfence.facade import SandboxManager

MOST_FOUND = 10_000
_SECONDS = 10.0


async def look(manager: SandboxManager, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the program finds; `asked` has its `look` and its `path`.

    Raises:
        InvalidRequest: There is nothing of this name, or the pattern is none.
        TimedOut: It takes longer than anybody waits for it.
        RingfenceError: The policy does not allow it.
    """
    # not where the project's own files are: a json.py of its would be imported instead
    result = await manager.execute_code(
        "python", _program(), _SECONDS, stdin=json.dumps(asked).encode(), cwd="/workspace/inputs"
    )
    if result.status is Status.TIMED_OUT:
        raise TimedOut("the files take longer to look through than is allowed", reason="wall_timeout")
    try:
        told = json.loads(result.stdout)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ExecutionFailed("the files could not be looked through", reason="execution_failed")
    if "pattern" in told:
        raise InvalidRequest(f"the pattern cannot be read: {str(told['pattern'])[:200]}", reason="invalid_glob")
    if "errno" in told:
        raise refusal(told["errno"] if isinstance(told["errno"], int) else None, str(asked["path"]))
    if not isinstance(told.get("found"), list):
        raise ExecutionFailed("the files could not be looked through", reason="execution_failed")
    return told


@cache
def _program() -> str:
    return (resources.files("ringfence.service.aio") / "look.py").read_text()
