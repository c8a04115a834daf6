"""Turns what a caller asks for into a process: checked first, named, and attached to one run of the pipeline."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol

from ringfence.errors import InvalidRequest
from ringfence.evidence.correlation import Correlation
from ringfence.processes.process import Process
from ringfence.processes.records import Started
from ringfence.processes.registry import Registry
from ringfence.processes.running import Running, check_size

if TYPE_CHECKING:
    from ringfence.attachment import Attachment
    from ringfence.authority.profile import Profile
    from ringfence.interpreter.conversation import Conversation
    from ringfence.operation import CodeRun
    from ringfence.outcome import ExecutionResult

_LEAST_IDLE_SECONDS = 1.0


class Run(Protocol):
    """The pipeline, told everything but who stays with the run."""

    def __call__(self, *, attached: Attachment) -> Awaitable[ExecutionResult]:
        """Carry it out."""
        ...


def program(command: str | None, code: str | bytes | None, language: str) -> tuple[str | bytes, str]:
    """Return what to run and in which language; a command is for the shell.

    Raises:
        InvalidRequest: There is neither, or both, or a command for another language.
    """
    if (command is None) == (code is None):
        raise InvalidRequest("a process is started with a command or with code", reason="invalid_value")
    if command is None:
        return code or "", language
    if language != "bash":
        raise InvalidRequest(f"a command is for bash, not {language!r}", reason="invalid_value", fix="give it as code=")
    return command, language


def check(terminal: tuple[int, int] | None, idle_timeout: float | None) -> None:
    """Refuse a terminal or a limit that cannot be.

    Raises:
        InvalidRequest: Naming it.
    """
    if terminal is not None:
        check_size(terminal)
    if idle_timeout is None:
        return
    if isinstance(idle_timeout, bool) or not isinstance(idle_timeout, int | float):
        raise InvalidRequest(f"idle_timeout must be a number of seconds, not {idle_timeout!r}", reason="invalid_limit")
    if not idle_timeout >= _LEAST_IDLE_SECONDS:  # written so that NaN fails too
        raise InvalidRequest(
            f"idle_timeout must be at least {_LEAST_IDLE_SECONDS:g} s, not {idle_timeout}", reason="invalid_limit"
        )


async def start(
    registry: Registry,
    run: Run,
    operation: CodeRun,
    profile: Profile,
    *,
    exec_id: str,
    terminal: tuple[int, int] | None,
    idle_timeout: float | None,
    correlation: Correlation,
    owner: object,
    conversation: Conversation | None = None,
) -> Process:
    """Start it, and return once the guest runs.

    Raises:
        QuotaExceeded: As many processes as allowed are running.
        RingfenceError: Whatever the pipeline refused or failed at; nothing runs.
    """
    about = Started(
        process_id=registry.new_id(),
        exec_id=exec_id,
        tenant=profile.tenant,
        subject_id=profile.subject_id,
        language=str(operation.language),
        session_id=operation.session_id,
        terminal=terminal,
        idle_seconds=None if idle_timeout is None else float(idle_timeout),
        wall_seconds=profile.limits.wall_seconds,
        ports=operation.ports,
        correlation=correlation,
    )

    def attached(running: Running) -> Awaitable[ExecutionResult]:
        return run(attached=running)

    process = Process(await registry.start(about, attached, owner=owner, conversation=conversation))
    if conversation is not None:
        conversation.attach(process)
    return process
