"""The bodies and answers of executions and operations, as the OpenAPI document shows and the framework checks them.

Only their shape is checked here; what they mean is `service.exec_form`'s to say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from ringfence.operation import MAX_CODE_BYTES, MAX_INPUT_FILES
from ringfence.operation.code import MAX_DOMAINS
from ringfence.service.exec_finder import MOST_PER_PAGE

_MOST_ARGUMENTS = 1024
_MOST_VARIABLES = 1024
_NONE: Any = ()
"""An empty list that cannot be changed, and so is not copied for every request."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Text = Annotated[str, StringConstraints(max_length=128 * 1024)]
Path = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
# of one that is either, the framework would write down its bounds in words that no reader of the document knows
Number = Annotated[
    int | float,
    Field(gt=0, lt=2**53),
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2**53}),
]
Stand = Literal["queued", "running", "succeeded", "failed", "timed_out", "killed", "cancelled", "denied", "error"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ExecSpec(_Strict):
    """What to run: `code`, or `command` with `args` as a shell would have them (`["-lc", script]`, `["-c", code]`)."""

    kind: Literal["python", "shell", "bash", "javascript", "typescript"]
    command: Annotated[str, StringConstraints(max_length=256)] | None = None
    args: Annotated[list[Annotated[str, StringConstraints(max_length=MAX_CODE_BYTES)]], Field(max_length=1024)] = _NONE
    code: Annotated[str, StringConstraints(max_length=MAX_CODE_BYTES)] | None = None
    cwd: Path | None = None
    env: Annotated[dict[Name, Text], Field(max_length=_MOST_VARIABLES)] = {}
    stdin: str | None = None
    stdin_b64: str | None = None
    packages: Annotated[list[Name], Field(max_length=256)] = _NONE
    preload: Annotated[list[Name], Field(max_length=256)] = _NONE


class FileContent(_Strict):
    """A file that comes with the request: text in `content`, or anything in `content_b64`."""

    path: Path
    content: str | None = None
    content_b64: str | None = None


class References(_Strict):
    """What the caller's own records call this work; executions are found by it."""

    user_id: Name | None = None
    space_id: Name | None = None
    conversation_id: Name | None = None
    turn_id: Name | None = None
    task_id: Name | None = None
    project_id: Name | None = None
    skill_id: Name | None = None
    request_id: Name | None = None
    traceparent: Name | None = None


class TaskRef(_Strict):
    """The task that this work belongs to."""

    task_id: Name | None = None
    turn_id: Name | None = None
    user_id: Name | None = None
    space_id: Name | None = None
    conversation_id: Name | None = None


class NetOverride(_Strict):
    """How much network: none, or an allow-list of hosts, each of which the policy has to grant."""

    mode: Literal["none", "safe_retrieval", "allowlist", "unrestricted"]
    domains: Annotated[list[Name], Field(max_length=MAX_DOMAINS)] | None = None


class Overrides(_Strict):
    """What this once shall hold instead of the policy's values; more than the policy has is refused."""

    timeout_ms: Number | None = None
    cpu_ms: Number | None = None
    cpu_cores: Number | None = None
    memory_mb: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    disk_mb: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    pids: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_stdout_bytes: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_stderr_bytes: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_artifacts_bytes_total: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_bytes_in: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_bytes_out: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_files: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_depth: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_concurrency: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_changed_paths: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    max_changed_bytes: Annotated[int, Field(gt=0, lt=2**53)] | None = None
    net: NetOverride | None = None
    commit: Literal["always", "ask", "never"] | None = None
    limits: Annotated[dict[Name, Number], Field(max_length=64)] | None = None
    isolation: Name | None = None
    security_mode: Name | None = None
    require_cgroups: bool | None = None
    role: Name | None = None


class ExecBody(_Strict):
    """One execution; `project_id` or `conversation_id` names whose files it works on."""

    project_id: Name | None = None
    conversation_id: Name | None = None
    skill_id: Name | None = None
    exec: ExecSpec
    inputs: Annotated[list[FileContent], Field(max_length=MAX_INPUT_FILES)] = _NONE
    files: Annotated[list[FileContent], Field(max_length=MAX_INPUT_FILES)] = _NONE
    policy_overrides: Overrides | None = None
    task_ref: Name | TaskRef | None = None
    correlation: References | None = None
    secrets: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=32)] = _NONE
    ephemeral: bool = False
    wait: bool = True


class OperationBody(_Strict):
    """One brokered operation of 000 on the files of a project."""

    project_id: Name | None = None
    conversation_id: Name | None = None
    operation: Annotated[dict[str, Any], Field(max_length=16)]
    task_ref: Name | TaskRef | None = None
    correlation: References | None = None


class Filters(BaseModel):
    """Which executions to list."""

    model_config = ConfigDict(extra="forbid")

    task_id: Name | None = None
    project_id: Name | None = None
    conversation_id: Name | None = None
    skill_id: Name | None = None
    user_id: Name | None = None
    space_id: Name | None = None
    turn_id: Name | None = None
    status: Stand | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_PER_PAGE)] = 50
    cursor: Annotated[str, StringConstraints(max_length=256)] | None = None


class _Told(BaseModel):
    model_config = ConfigDict(extra="allow")


class ExecView(_Told):
    """An execution: where it stands, and once it has ended its result; see the fields of `ExecutionResult`."""

    exec_id: str
    status: Stand
    exit_code: int | None
    artifacts_dir: str | None
    stdout_path: str | None
    stderr_path: str | None


class ExecLine(_Told):
    """An execution as a line of a list: the twenty fields of 003, and its evidence."""

    exec_id: str
    status: Stand


class ExecPage(BaseModel):
    """Some executions, newest first; `next_cursor` is null on the last page."""

    items: list[ExecLine]
    next_cursor: str | None


class ArtifactView(BaseModel):
    """A file that an execution left."""

    path: str
    size: int
    sha256: str


class ArtifactList(BaseModel):
    """The files that an execution left; none while it has not ended."""

    exec_id: str
    artifacts: list[ArtifactView]


class OperationView(_Told):
    """What came of an operation: of a program the result, of everything else its digest view and content."""

    exec_id: str
