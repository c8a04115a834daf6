"""An execution as a caller sees it: from the result while it is fresh, from its records and files ever after; the same.

Paths are relative to the workspace of the service: where that lies on the host is nobody's business but the auditor's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringfence.errors import RingfenceError
from ringfence.errors.form import read_problem
from ringfence.evidence.projections.exec_row import COLUMNS, exec_row, kept_in
from ringfence.evidence.projections.run import Run
from ringfence.outcome import Artifact, Container, ExecutionResult, FileChanges, Layers, SandboxType, Status
from ringfence.outcome_form import result_form
from ringfence.workspaces.exec_files import artifacts_path

if TYPE_CHECKING:
    from ringfence.journal.store import Exec
    from ringfence.workspaces.exec_files import ExecFiles

View = dict[str, Any]
_BESIDE_ROW = ("evidence_id", "error_code", "reason", "operation")
_ONLY_IN_ROW = frozenset(COLUMNS) - {"exec_id", "status", "exit_code", "stdout_truncated", "stderr_truncated"}
_NAMED = ("project_id", "task_id", "conversation_id", "skill_id")


def places(tenant: str, project_id: str | None, exec_id: str) -> View:
    """Return where the files of an execution are, or will be."""
    if project_id is None:
        return {"artifacts_dir": None, "stdout_path": None, "stderr_path": None}
    directory = artifacts_path(project_id, exec_id, tenant)
    return {
        "artifacts_dir": directory,
        "stdout_path": f"{directory}/stdout.txt",
        "stderr_path": f"{directory}/stderr.txt",
    }


def unfinished(tenant: str, project_id: str | None, exec_id: str, status: Status) -> View:
    """Return the view of an execution that waits or runs."""
    return {"exec_id": exec_id, "status": str(status), "exit_code": None, **places(tenant, project_id, exec_id)}


def finished(tenant: str, project_id: str | None, result: ExecutionResult) -> View:
    """Return the view of an execution whose result has just come."""
    # to the microsecond, as the record has it: who asks again is told the same
    elapsed = round(result.elapsed_ms, 3)
    return {**result_form(result), "elapsed_ms": elapsed, **places(tenant, project_id, result.exec_id)}


def never_began(exec_id: str, status: Status, error: RingfenceError | None = None) -> ExecutionResult:
    """Return what there is to say of an execution that was refused or cancelled before anything of it happened."""
    if error is None:
        return ExecutionResult(status, exec_id=exec_id, error="it was cancelled", reason="cancelled")
    return ExecutionResult(
        status, exec_id=exec_id, error=str(error), error_code=error.code, reason=error.reason,
        evidence_id=_evidence_of(error),
    )  # fmt: skip


def status_of(error: RingfenceError | None) -> Status:
    """Return the state in which an execution is that brought no result; no error is nobody's wish any more."""
    if error is None:
        return Status.CANCELLED
    return Status.DENIED if error.answer.is_denial else Status.ERROR


def from_records(begin: Mapping[str, Any], end: Mapping[str, Any] | None, files: ExecFiles | None) -> View:
    """Return the view of an execution as its records and its files tell it: all that `finished` has, and 003's row.

    Raises:
        InvalidRequest: The records are not those of one execution.
    """
    run = Run(begin, end)
    exec_id, tenant, project_id = run.get("exec_id"), str(run.get("tenant")), run.get("project_id")
    row = exec_row(begin, end)
    if not run.is_finished:
        return {**row, **unfinished(tenant, project_id, exec_id, Status.RUNNING)}
    return {**row, **finished(tenant, project_id, _result(run, files))}


def from_index(found: Exec) -> View:
    """Return what is left of an execution whose records were pruned."""
    pruned = ExecutionResult(
        Status(found.outcome), exec_id=found.exec_id, evidence_id=found.envelope_id, notes=("its records were pruned",)
    )
    return {**from_index_row(found), **finished(found.tenant or "local", found.project_id, pruned)}


def from_index_row(found: Exec) -> View:
    """Return the same as a line of a list."""
    named = {name: getattr(found, name) for name in _NAMED}
    known = {"exec_id": found.exec_id, "status": found.outcome, "started_at": found.started_ms}
    return {**dict.fromkeys(COLUMNS), **named, **known, **dict.fromkeys(_BESIDE_ROW), "evidence_id": found.envelope_id}


def answer_of(view: View) -> View:
    """Return of a whole view what the first to ask was told."""
    return {name: value for name, value in view.items() if name not in _ONLY_IN_ROW}


def row_of(begin: Mapping[str, Any], end: Mapping[str, Any] | None) -> View:
    """Return an execution as a line of a list: the row of 003, its evidence, and its code and reason if it failed."""
    run = Run(begin, end)
    return {
        **exec_row(begin, end),
        "evidence_id": run.get("envelope_id"),
        "error_code": run.error_code,
        "reason": run.get("reason"),
        "operation": run.operation("kind"),
    }


def problem_form(error: RingfenceError) -> View:
    """Return an error so that `read_problem` makes it again."""
    form: View = {"code": error.code, "reason": error.reason, "detail": str(error), "details": dict(error.details)}
    return form if error.fix is None else {**form, "fix": error.fix}


def error_of(form: object) -> RingfenceError | None:
    """Return the error that `problem_form` wrote."""
    return read_problem(form)


def _result(run: Run, files: ExecFiles | None) -> ExecutionResult:
    """Make the result again; what records do not hold is not there, and output is there where its files are."""
    ending = run.last
    budget: Mapping[str, Any] = ending.get("budget_used") or {}
    stdout, stderr = ending.get("stdout") or {}, ending.get("stderr") or {}
    written: Mapping[str, Any] = run.get("files_written") or {}
    risk = run.get("risk")
    return ExecutionResult(
        Status(run.outcome),
        exit_code=ending.get("exit_code"),
        stdout_raw=b"" if files is None else files.stdout,
        stderr_raw=b"" if files is None else files.stderr,
        stdout_bytes=int(stdout.get("bytes", 0)),
        stderr_bytes=int(stderr.get("bytes", 0)),
        stdout_truncated=bool(stdout.get("truncated")),
        stderr_truncated=bool(stderr.get("truncated")),
        killed_by=ending.get("killed_by"),
        error=ending.get("error_reason"),
        error_code=ending.get("error_code"),
        reason=ending.get("reason"),
        elapsed_ms=int(ending.get("duration_us", 0)) / 1000,
        cpu_ms=int(budget.get("cpu_ms", 0)),
        memory_peak_bytes=_maybe(ending.get("memory_used_bytes")),
        sandbox_id=str(ending.get("sandbox_id", "")),
        sandbox_type=SandboxType(ending.get("sandbox_type", SandboxType.NATIVE)),
        backend=str(ending.get("backend", "native")),
        isolation=_layers(ending),
        artifacts=tuple(Artifact(each["path"], int(each["size"]), each["sha256"]) for each in _artifacts(run, files)),
        files_written=tuple(
            path.removeprefix("work/") for path in written.get("paths", ()) if path.startswith("work/")
        ),
        changes=FileChanges(complete=bool(written.get("complete", True))),
        tasks_peak=_maybe((run.get("processes") or {}).get("peak")),
        notes=tuple(f"not kept: {each}" for each in ending.get("not_kept", ())),
        exec_id=str(run.get("exec_id")),
        evidence_id=run.get("envelope_id"),
        kept_in=kept_in(run.begin, ending),
        risk=str(risk.get("effective", "")) or None if isinstance(risk, Mapping) else None,
    )


def artifacts_of(files: ExecFiles) -> list[View]:
    """Return the artifacts by the paths that their guest gave them."""
    return [
        {"path": each.get("name", each["path"]), "size": each["size"], "sha256": each["sha256"]}
        for each in files.manifest.get("artifacts") or ()
    ]


def _artifacts(run: Run, files: ExecFiles | None) -> list[Any]:
    return list(run.get("artifacts") or ()) if files is None else artifacts_of(files)


def _layers(ending: Mapping[str, Any]) -> Layers:
    made_from = {name: ending[name] for name in Container.__slots__ if name in ending}
    container = {"container": made_from} if len(made_from) == len(Container.__slots__) else {}
    return Layers.from_dict({**(ending.get("layers") or {}), **container})


def _maybe(value: Any) -> int | None:
    return None if value is None else int(value)


def _evidence_of(error: RingfenceError) -> str | None:
    found = error.details.get("evidence_id")
    return None if found is None else str(found)
