"""Code in an AIO service: one program for itself, or cells of a notebook that keep their variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ringfence.dataclass import dataclass, field
from ringfence.isolation.aio.answers import Form, maybe, member, read_data, texts
from ringfence.isolation.aio.door import Door

_MORE_THAN_THE_RUN = 15.0


@dataclass(frozen=True, slots=True)
class Output:
    """One piece of what a cell put out."""

    output_type: str
    name: str | None = None
    text: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    ename: str | None = None
    evalue: str | None = None
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeAnswer:
    """What a service says came of a program or cell."""

    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    outputs: tuple[Output, ...] = ()
    session_id: str | None = None


class Code:
    """`/v1/code`."""

    def __init__(self, door: Door) -> None:
        """Speak through `door`."""
        self._door = door

    async def execute(
        self,
        code: str,
        language: str = "python",
        *,
        seconds: int | None = None,
        cwd: str | None = None,
        stateful: bool = False,
        session_id: str | None = None,
    ) -> CodeAnswer:
        """Run a program in Python or JavaScript, for 300 seconds at most."""
        form = {
            "language": language,
            "code": code,
            "timeout": seconds,
            "cwd": cwd,
            "stateful": stateful,
            "session_id": session_id,
        }
        answer = await self._door.post("code/execute", form, seconds=_patience(self._door, seconds))
        return _answer(read_data(answer))


class Jupyter:
    """`/v1/jupyter`."""

    def __init__(self, door: Door) -> None:
        """Speak through `door`."""
        self._door = door

    async def execute(
        self,
        code: str,
        *,
        seconds: int | None = None,
        kernel_name: str | None = None,
        session_id: str | None = None,
        cwd: str | None = None,
    ) -> CodeAnswer:
        """Run a cell; those of one session share their variables."""
        form = {
            "code": code,
            "timeout": seconds,
            "kernel_name": kernel_name,
            "session_id": session_id,
            "cwd": cwd,
        }
        answer = await self._door.post("jupyter/execute", form, seconds=_patience(self._door, seconds))
        return _answer(read_data(answer))

    async def create_session(self, *, kernel_name: str | None = None, session_id: str | None = None) -> str:
        """Begin a session and return its name."""
        form = {"kernel_name": kernel_name, "session_id": session_id}
        return member(read_data(await self._door.post("jupyter/sessions/create", form)), "session_id", str)

    async def sessions(self) -> tuple[str, ...]:
        """Return the names of the sessions there are."""
        return tuple(member(read_data(await self._door.get("jupyter/sessions")), "sessions", dict))

    async def end_session(self, session_id: str) -> None:
        """End a session and forget its variables."""
        await self._door.delete(f"jupyter/sessions/{quote(session_id, safe='')}")


def _patience(door: Door, seconds: float | None) -> float:
    return (door.seconds if seconds is None else seconds) + _MORE_THAN_THE_RUN


def _answer(data: Form) -> CodeAnswer:
    outputs = tuple(_output(each) for each in maybe(data, "outputs", list) or [])
    said = {
        name: "".join(each.text or "" for each in outputs if each.output_type == "stream" and each.name == name)
        for name in ("stdout", "stderr")
    }
    return CodeAnswer(
        member(data, "status", str),
        maybe(data, "stdout", str) or said["stdout"],
        maybe(data, "stderr", str) or said["stderr"],
        maybe(data, "exit_code", int),
        outputs,
        maybe(data, "session_id", str),
    )


def _output(form: object) -> Output:
    told = form if isinstance(form, dict) else {}
    return Output(
        member(told, "output_type", str),
        maybe(told, "name", str),
        maybe(told, "text", str),
        maybe(told, "data", dict) or {},
        maybe(told, "ename", str),
        maybe(told, "evalue", str),
        texts(told, "traceback"),
    )
