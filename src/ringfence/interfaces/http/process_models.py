"""The bodies and answers of processes, as the OpenAPI document shows and the framework checks them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from ringfence.interfaces.http.exec_models import ExecSpec, FileContent, Name, Number, Overrides, References, TaskRef
from ringfence.operation import MAX_CODE_BYTES, MAX_INPUT_FILES
from ringfence.operation.code import MAX_PORTS
from ringfence.processes.running import MOST_READ, MOST_SENT

MOST_WAIT_MS = 30_000
Offset = Annotated[int, Field(ge=0, lt=2**53)]
_LEAST_IDLE_MS = 1000
_Idle = Annotated[
    int | float,
    Field(ge=_LEAST_IDLE_MS, lt=2**53),
    WithJsonSchema({"type": "number", "minimum": _LEAST_IDLE_MS, "exclusiveMaximum": 2**53}),
]
_Port = Annotated[int, Field(ge=1, le=65535)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Size(_Strict):
    """The size of a terminal, in characters."""

    rows: Annotated[int, Field(ge=1, le=1000)]
    columns: Annotated[int, Field(ge=1, le=1000)]


class ProcessBody(_Strict):
    """A process to start, written as an execution is; `policy_overrides.timeout_ms` bounds all of it."""

    project_id: Name | None = None
    conversation_id: Name | None = None
    exec: ExecSpec | None = None
    interpreter: Literal["python"] | None = Field(
        None,
        description="An interpreter that takes cells, instead of `exec.code`; `exec` may give its env and packages",
    )
    inputs: Annotated[list[FileContent], Field(max_length=MAX_INPUT_FILES)] = []
    files: Annotated[list[FileContent], Field(max_length=MAX_INPUT_FILES)] = []
    policy_overrides: Overrides | None = None
    task_ref: Name | TaskRef | None = None
    correlation: References | None = None
    ephemeral: bool = False
    terminal: Size | None = Field(None, description="A terminal of this size instead of pipes")
    idle_timeout_ms: _Idle | None = Field(None, description="Ended after so long without output and input")
    ports: Annotated[list[_Port], Field(max_length=MAX_PORTS)] = []
    wait_ms: Annotated[int, Field(ge=0, le=MOST_WAIT_MS)] = Field(
        500, description="How long the answer waits for the first output"
    )


class CellBody(_Strict):
    """The next cell of an interpreter; what it defines is there for the one after it."""

    code: Annotated[str, StringConstraints(max_length=MAX_CODE_BYTES)]
    timeout_ms: Number | None = None


class StdinBody(_Strict):
    """Bytes for the input of a process: text in `data`, or anything in `data_b64`; `end` closes it."""

    data: Annotated[str, StringConstraints(max_length=MOST_SENT)] | None = None
    data_b64: Annotated[str, StringConstraints(max_length=MOST_SENT * 4 // 3 + 4)] | None = None
    end: bool = False


class SignalBody(_Strict):
    """A signal; on a terminal `INT` interrupts whatever is in the foreground."""

    signal: Literal["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT", "TSTP", "WINCH"] = "INT"


class PollQuery(BaseModel):
    """From where on to tell what a process said."""

    model_config = ConfigDict(extra="forbid")

    stdout_offset: Offset = 0
    stderr_offset: Offset = 0
    max_bytes: Annotated[int, Field(ge=1, le=MOST_READ)] = MOST_READ
    wait_ms: Annotated[int, Field(ge=0, le=MOST_WAIT_MS)] = 0


class OffsetsQuery(BaseModel):
    """From where on to follow what a process says."""

    model_config = ConfigDict(extra="forbid")

    stdout_offset: Offset = 0
    stderr_offset: Offset = 0


class PieceView(BaseModel):
    """A stretch of one output, by its place in all that was ever said on it."""

    offset: int
    data_b64: str
    text: str
    next_offset: int
    lost_bytes: int = Field(description="Bytes before `offset` that were asked for and are no longer kept")


class ProcessView(BaseModel):
    """One process."""

    process_id: str
    exec_id: str
    state: str
    exit_code: int | None
    killed_by: str | None
    language: str
    project_id: str | None
    terminal: Size | None
    ports: list[int]
    started_at_ms: int
    stdout_bytes: int
    stderr_bytes: int


class ProcessOutputView(ProcessView):
    """One process, and what it said since."""

    stdout: PieceView
    stderr: PieceView


class ProcessList(BaseModel):
    """The processes that a caller may know of."""

    items: list[ProcessView]
