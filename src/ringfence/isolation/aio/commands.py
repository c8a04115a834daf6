"""Command lines in an AIO service: `bash`, with its two streams apart, and `shell`, which is a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from ringfence.dataclass import dataclass
from ringfence.isolation.aio import answers
from ringfence.isolation.aio.answers import Form, maybe, member, no_answer, read_data
from ringfence.isolation.aio.door import Door

UNDER_WAY: Final = frozenset({"pending", "running"})
ENDED: Final = frozenset({"completed", "timed_out", "killed", "no_change_timeout", "hard_timeout", "terminated"})
_MORE_THAN_THE_WAIT: Final = 15.0
"""How many seconds the answer to a request that waits there may take beyond the wait."""


@dataclass(frozen=True, slots=True)
class BashCommand:
    """A command line and how far it has come; `stdout` and `stderr` are what is new since the last look."""

    session_id: str
    command_id: str
    status: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    offset: int = 0
    stderr_offset: int = 0

    @property
    def is_under_way(self) -> bool:
        """Whether it has not ended."""
        return self.status in UNDER_WAY


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """What a terminal shows, and whether the command in it has ended."""

    session_id: str
    status: str
    output: str = ""
    exit_code: int | None = None


class Bash:
    """`/v1/bash`: commands whose output and errors come apart."""

    def __init__(self, door: Door) -> None:
        """Speak through `door`."""
        self._door = door

    async def exec(
        self,
        command: str,
        *,
        session_id: str | None = None,
        exec_dir: str | None = None,
        env: Mapping[str, str] | None = None,
        in_background: bool = False,
        wait_seconds: float | None = None,
        hard_seconds: float | None = None,
    ) -> BashCommand:
        """Run a command line; after `hard_seconds` it is killed, after `wait_seconds` only no longer waited for."""
        wait = self._door.seconds if wait_seconds is None else wait_seconds
        form = {
            "command": command,
            "session_id": session_id,
            "exec_dir": exec_dir,
            "env": None if env is None else dict(env),
            "async_mode": in_background,
            "timeout": None if in_background else wait,
            "hard_timeout": hard_seconds,
            "max_output_length": 0,
        }
        data = read_data(await self._door.post("bash/exec", form, seconds=wait + _MORE_THAN_THE_WAIT))
        return BashCommand(
            member(data, "session_id", str),
            member(data, "command_id", str),
            _status(data),
            maybe(data, "exit_code", int),
            maybe(data, "stdout", str) or "",
            maybe(data, "stderr", str) or "",
            _offset(data, "offset"),
            _offset(data, "stderr_offset"),
        )

    async def output(self, command: BashCommand, *, wait_seconds: float = 0.0) -> BashCommand:
        """Return what came since `command`; waits for it for as long as it is told to."""
        form = {
            "session_id": command.session_id,
            "command_id": command.command_id,
            "offset": command.offset,
            "stderr_offset": command.stderr_offset,
            "wait": wait_seconds > 0,
            "wait_timeout": wait_seconds,
        }
        data = read_data(await self._door.post("bash/output", form, seconds=wait_seconds + _MORE_THAN_THE_WAIT))
        about = maybe(data, "command", dict)
        offset, stderr_offset = _offset(data, "offset"), _offset(data, "stderr_offset")
        if offset < command.offset or stderr_offset < command.stderr_offset:
            raise no_answer("offset beyond the last one")  # or the same output would be told for ever
        return BashCommand(
            command.session_id,
            command.command_id,
            command.status if about is None else _status(about),
            None if about is None else maybe(about, "exit_code", int),
            maybe(data, "stdout", str) or "",
            maybe(data, "stderr", str) or "",
            offset,
            stderr_offset,
        )

    async def write(self, command: BashCommand, text: str) -> None:
        """Give `text` to the input of a command."""
        form = {"session_id": command.session_id, "command_id": command.command_id, "input": text}
        await self._door.post("bash/write", form)

    async def kill(self, session_id: str, signal: str = "SIGKILL") -> None:
        """Signal what runs in a session."""
        await self._door.post("bash/kill", {"session_id": session_id, "signal": signal})

    async def close_session(self, session_id: str) -> None:
        """End a session."""
        await self._door.post(f"bash/sessions/{quote(session_id, safe='')}/close", {})


class Shell:
    """`/v1/shell`: commands in a terminal."""

    def __init__(self, door: Door) -> None:
        """Speak through `door`."""
        self._door = door

    async def exec(
        self,
        command: str,
        *,
        session_id: str | None = None,
        exec_dir: str | None = None,
        in_background: bool = False,
        wait_seconds: float | None = None,
        hard_seconds: float | None = None,
    ) -> ShellCommand:
        """Type a command line; times as those of `Bash.exec`."""
        wait = self._door.seconds if wait_seconds is None else wait_seconds
        form = {
            "command": command,
            "id": session_id,
            "exec_dir": exec_dir,
            "async_mode": in_background,
            "timeout": None if in_background else wait,
            "hard_timeout": hard_seconds,
        }
        return _shell_command(read_data(await self._door.post("shell/exec", form, seconds=wait + _MORE_THAN_THE_WAIT)))

    async def view(self, session_id: str) -> ShellCommand:
        """Look at a terminal."""
        return _shell_command(read_data(await self._door.post("shell/view", {"id": session_id})))

    async def wait(self, session_id: str, seconds: int) -> str:
        """Wait for the command in a terminal and return its status."""
        data = read_data(
            await self._door.post(
                "shell/wait", {"id": session_id, "seconds": seconds}, seconds=seconds + _MORE_THAN_THE_WAIT
            )
        )
        return _status(data)

    async def write(self, session_id: str, text: str, *, press_enter: bool = True) -> None:
        """Type `text` into a terminal."""
        await self._door.post("shell/write", {"id": session_id, "input": text, "press_enter": press_enter})

    async def kill(self, session_id: str) -> None:
        """End the command in a terminal."""
        await self._door.post("shell/kill", {"id": session_id})


def _shell_command(data: Form) -> ShellCommand:
    return ShellCommand(
        member(data, "session_id", str), _status(data), maybe(data, "output", str) or "", maybe(data, "exit_code", int)
    )


def _status(form: Form) -> str:
    status = member(form, "status", str)
    if status not in UNDER_WAY | ENDED:
        raise answers.no_answer("known 'status'")  # whoever waited for the end of it would never know it has come
    return status


def _offset(form: Form, name: str) -> int:
    offset = maybe(form, name, int) or 0
    if offset < 0:
        raise no_answer(f"{name!r}")
    return offset
