"""Processes as a service has them: found for whoever may see them, and written as the one form that all doors give."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from ringfence.dataclass import dataclass, fields
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.processes.process import Process
from ringfence.service.exec_form import require_trusted_preload

if TYPE_CHECKING:
    from ringfence.outcome import ExecutionResult
    from ringfence.processes.ring import Piece
    from ringfence.processes.running import ProcessInfo, ProcessOutput
    from ringfence.service.callers import Principal
    from ringfence.service.exec_form import ExecForm
    from ringfence.service.house import House

_OF_A_PROGRAM = frozenset({"code", "language", "args", "stdin"})


@dataclass(frozen=True, slots=True)
class AskedProcess:
    """A process that a caller asks for: one run, and how somebody stays with it."""

    form: ExecForm
    interpreter: bool = False
    terminal: tuple[int, int] | None = None
    idle_timeout: float | None = None
    ports: tuple[int, ...] = ()


async def start(house: House, who: Principal, asked: AskedProcess) -> Process:
    """Start what is asked for on behalf of the caller.

    Raises:
        Unavailable: The service is about to end.
        RingfenceError: Whatever refused it; nothing runs.
    """
    if house.draining:
        raise Unavailable("the service is about to end; ask again", reason="draining")
    form = asked.form
    require_trusted_preload(who, form)
    manager = house.manager_for(who, form.project_id, form.correlation, form.stricter)
    options = {field.name: getattr(form.request, field.name) for field in fields(form.request)}
    if not asked.interpreter:
        return await manager.start_process(
            terminal=asked.terminal, idle_timeout=asked.idle_timeout, ports=asked.ports, **options
        )
    if asked.terminal is not None or asked.ports:
        raise InvalidRequest("an interpreter has neither a terminal nor ports", reason="no_terminal")
    kept = {name: value for name, value in options.items() if name not in _OF_A_PROGRAM}
    return await manager.start_interpreter(idle_timeout=asked.idle_timeout, **kept)


async def run_cell(
    house: House,
    who: Principal,
    process_id: str,
    code: str,
    timeout: float | None,  # noqa: ASYNC109  the cell's own limit, kept by interrupting it
) -> ExecutionResult:
    """Run the next cell of an interpreter of the caller's.

    Raises:
        InvalidRequest: There is no such process of the caller's, or it takes no cells.
    """
    process = found(house, who, process_id)
    manager = house.manager_for(who, process.info.session_id)
    return await manager.run_cell(process_id, code, timeout)


def listed(house: House, who: Principal) -> list[ProcessInfo]:
    """Return the processes that the caller may know of."""
    return house.manager.engine.processes().listed(who.reads)


def found(house: House, who: Principal, process_id: str) -> Process:
    """Return a process that the caller may touch.

    Raises:
        InvalidRequest: There is none of this name, or it is another tenant's, which nobody can tell apart.
    """
    return Process(house.manager.engine.processes().find(who.reads, process_id))


def info_form(info: ProcessInfo) -> dict[str, Any]:
    """Return one process as a list shows it."""
    rows = None if info.terminal is None else {"rows": info.terminal[0], "columns": info.terminal[1]}
    return {
        "process_id": info.process_id,
        "exec_id": info.exec_id,
        "state": str(info.state),
        "exit_code": info.exit_code,
        "killed_by": info.killed_by,
        "language": info.language,
        "project_id": info.session_id,
        "terminal": rows,
        "ports": list(info.ports),
        "started_at_ms": info.started_ms,
        "stdout_bytes": info.stdout_bytes,
        "stderr_bytes": info.stderr_bytes,
    }


def output_form(process: Process, said: ProcessOutput) -> dict[str, Any]:
    """Return where a process stands, and what it said."""
    return {
        **info_form(process.info),
        "state": str(said.state),
        "exit_code": said.exit_code,
        "stdout": piece_form(said.stdout),
        "stderr": piece_form(said.stderr),
    }


def piece_form(piece: Piece) -> dict[str, Any]:
    """Return a stretch of output: its bytes as they are, and as text for whoever only shows them."""
    return {
        "offset": piece.offset,
        "data_b64": base64.b64encode(piece.data).decode("ascii"),
        "text": piece.data.decode("utf-8", "replace"),
        "next_offset": piece.next_offset,
        "lost_bytes": piece.lost_bytes,
    }
