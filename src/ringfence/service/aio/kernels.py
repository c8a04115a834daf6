"""Sessions of Python as AIO has them: an interpreter that is started by the first cell of a name, and its outputs."""

from __future__ import annotations

import base64
import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from ringfence.errors import InvalidRequest
from ringfence.outcome import Status

if TYPE_CHECKING:
    from ringfence.facade import SandboxManager
    from ringfence.outcome import ExecutionResult
    from ringfence.service.aio.sessions import Desk, Place, Session

KERNEL: Final = "python3"
_MEDIA: Final = {".png": "image/png", ".svg": "image/svg+xml", ".html": "text/html"}
_EXCEPTION: Final = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: (.*))?\Z")
_MOST_LINES: Final = 100
_GONE: Final = frozenset({"not_found", "session_over", "process_ended"})


async def begin(desk: Desk, manager: SandboxManager, place: Place, session: Session) -> None:
    """Start the interpreter of a session, unless it runs; one that cannot be started is forgotten.

    Raises:
        RingfenceError: Whatever refused it; nothing runs.
    """
    async with session.turn:
        if session.process_id is not None:
            return
        try:
            session.process_id = (await manager.start_interpreter(cwd=session.carried.cwd)).process_id
        except BaseException:
            desk.forget(place, session)
            raise


async def run(
    desk: Desk,
    manager: SandboxManager,
    place: Place,
    session: Session,
    code: str,
    timeout: float | None,  # noqa: ASYNC109  the cell's own limit, kept by interrupting it
) -> ExecutionResult:
    """Run the next cell of a session, after those that came before it.

    Raises:
        InvalidRequest: The interpreter is gone, and its variables with it; the next cell begins a new one.
        RingfenceError: Whatever refused it; nothing ran.
    """
    await begin(desk, manager, place, session)
    async with session.turn:
        session.count += 1
        try:
            return await manager.run_cell(str(session.process_id), code, timeout)
        except InvalidRequest as refused:
            if refused.reason not in _GONE:
                raise
            desk.forget(place, session)
            raise InvalidRequest(
                "the session has ended, and its variables are gone", reason="session_over", fix="begin it again"
            ) from None


async def run_once(
    manager: SandboxManager,
    code: str,
    cwd: str,
    timeout: float | None,  # noqa: ASYNC109  as above
) -> ExecutionResult:
    """Run one cell in an interpreter of its own, whose files are the project's when this returns."""
    process = await manager.start_interpreter(cwd=cwd)
    try:
        return await manager.run_cell(process.process_id, code, timeout)
    finally:
        await process.kill()


async def end(desk: Desk, manager: SandboxManager, place: Place, session: Session) -> None:
    """End a session with its interpreter; what it wrote is the project's when this returns."""
    desk.forget(place, session)
    if session.process_id is not None:
        try:
            process = await manager.process(session.process_id)
        except InvalidRequest:
            return
        await process.kill()


def status_of(result: ExecutionResult) -> str:
    """Return how a run ended: ok, error or timeout."""
    if result.success:
        return "ok"
    return "timeout" if result.status is Status.TIMED_OUT else "error"


def outputs_of(result: ExecutionResult, count: int | None = None) -> list[dict[str, Any]]:
    """Return what a cell said, showed and came to, as a notebook lists it."""
    told: list[dict[str, Any]] = [
        {"output_type": "stream", "name": name, "text": text}
        for name, text in (("stdout", result.stdout), ("stderr", result.stderr))
        if text
    ]
    for artifact in result.artifacts:
        media = _MEDIA.get(PurePosixPath(artifact.path).suffix)
        if media is not None:
            told.append({"output_type": "display_data", "data": {media: _shown(media, artifact.content)}})
    if result.value is not None:
        told.append({"output_type": "execute_result", "data": {"text/plain": result.value}, "execution_count": count})
    if not result.success:
        told.append(_error(result))
    return told


def _error(result: ExecutionResult) -> dict[str, Any]:
    lines = result.stderr.splitlines()[-_MOST_LINES:]
    last = _EXCEPTION.match(lines[-1]) if lines else None
    # a whole program's exception is told by its last line, that of a cell by the interpreter
    name, value = (last[1], last[2] or "") if last else (str(result.status), result.error or "")
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": lines}


def _shown(media: str, content: bytes) -> str:
    return base64.b64encode(content).decode("ascii") if media == "image/png" else content.decode("utf-8", "replace")
