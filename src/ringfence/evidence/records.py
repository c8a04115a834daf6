"""The records of one execution: what is about to happen and on whose word, what came of it, or why it did not.

Digests, sizes and names only: what a guest was given or gave back is never in a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ringfence.evidence import decided, described, effects
from ringfence.evidence.correlation import Correlation
from ringfence.evidence.documents import papers_of
from ringfence.operation.code import WORKING_DIRECTORY, CodeRun
from ringfence.outcome import BrokerOutcome, ExecutionResult, Status

if TYPE_CHECKING:
    from ringfence.authority.levels import IsolationLevel
    from ringfence.authority.profile import Profile
    from ringfence.authority.taint import Tainted
    from ringfence.capability.limits import Limits
    from ringfence.errors import RingfenceError
    from ringfence.guard.consent import Consent
    from ringfence.guard.verdict import Verdict
    from ringfence.operation.form import Operation
    from ringfence.outcome import Outcome

Members = dict[str, Any]
"""What a record says, before the log gives it its place."""

BEGIN: Final = "exec.begin"
END: Final = "exec.end"
DENIED: Final = "decision.denied"
ORPHANED: Final = "orphaned"

_COMMON = (
    "envelope_id",
    "exec_id",
    "call_id",
    "tenant",
    "subject_id",
    "session_id",
    "user_id",
    "space_id",
    "conversation_id",
    "turn_id",
    "task_id",
    "project_id",
    "skill_id",
    "image",
    "process_id",
    "tool_name",
    "request_id",
    "traceparent",
    "domain",
    "language",
    "safety",
    "side_effect",
)
_USED = ("calls", "bytes_in", "bytes_out", "cpu_ms", "gpu_ms", "file_count")
_MOUNTS: Final = [
    {"target": "/workspace/inputs", "mode": "ro"},
    {"target": "/workspace/work", "mode": "rw"},
    {"target": "/workspace/artifacts", "mode": "rw"},
]
_STATUS = {Status.SUCCEEDED: "ok", Status.DENIED: "denied"}


class Names(NamedTuple):
    """What one execution is called: by us, and in the evidence."""

    exec_id: str
    envelope_id: str


class Asked(NamedTuple):
    """Who asked for what could not even be judged."""

    tenant: str
    subject_id: str
    call_id: str
    tool_name: str
    correlation: Correlation


def begin(
    names: Names,
    operation: Operation,
    profile: Profile,
    verdict: Verdict,
    *,
    now_ms: int,
    isolation: IsolationLevel,
    session_id: str | None,
    correlation: Correlation,
    consent: Consent | None,
    timings: Mapping[str, int],
    tainted: Mapping[str, str | int] | None = None,
) -> Members:
    """Return the record that must be durable before `operation` starts."""
    members = {
        **decided.voices(profile),
        **_of_operation(operation),
        **correlation.members(),
        "type": BEGIN,
        "envelope_id": names.envelope_id,
        "exec_id": names.exec_id,
        "call_id": profile.call_id,
        "tenant": profile.tenant,
        "subject_id": profile.subject_id,
        "grant_id": profile.grant_id,
        "decision_key_fingerprint": profile.decision_key_fingerprint,
        "documents": papers_of(profile).references,
        "risk": decided.risks(verdict),
        "isolation": str(isolation),
        "limits": _limits(profile.limits),
        "timings": timings,
        "time_ms": now_ms,
        "produced_at_ms": now_ms,
    }
    if session_id is not None:
        members["session_id"] = session_id
        members.setdefault("project_id", session_id)  # a session's files are those of the project of its name
        members["mounts"] = _MOUNTS
    manifest = None if profile.sources is None else profile.sources.manifest
    if manifest is not None and manifest.runtime is not None:
        members["image"] = manifest.runtime.image  # what it asked for; `backend` says what it got
    if tainted is not None:  # nothing in it: the policy asks, and nobody was marked
        members["tainted"] = dict(tainted)
    agreed = decided.consented(consent, profile, operation, session_id)
    if agreed:
        members["consent"] = agreed
    if profile.expires_at is not None and (profile.sources is None or profile.sources.grant is None):
        members["expires_at_ms"] = profile.expires_at  # a grant that was presented says so itself
    return members


def policy_loaded(profile: Profile, envelope_id: str, *, now_ms: int) -> Members:
    """Return the record of a policy that counts from now on."""
    members = {
        "type": "policy.loaded",
        "envelope_id": envelope_id,
        "time_ms": now_ms,
        "tenant": profile.tenant,
        "policy_version_hash": profile.policy_version_hash,
    }
    references = papers_of(profile).references
    return {**members, "documents": {"policy": references["policy"]}} if references else members


def tainted_by(begun: Mapping[str, Any], tainted: Tainted, envelope_id: str) -> Members:
    """Return the record that a session, and whoever else it names, comes after untrusted content from now on."""
    members = {name: begun[name] for name in _COMMON if name in begun}
    return {
        **members,
        "type": "session.tainted",
        "envelope_id": envelope_id,
        "reached": tainted.reached,
        "time_ms": tainted.at_ms,
    }


def denied(begun: Mapping[str, Any], verdict: Verdict, refused: RingfenceError) -> Members:
    """Return the one record of what was not allowed to begin."""
    return {
        **begun,
        **_refusal(refused, Status.DENIED),
        **decided.refusal(verdict),
        "type": DENIED,
        "finished_at_ms": begun["produced_at_ms"],
    }


def turned_away(names: Names, operation: Operation, who: Asked, refused: RingfenceError, *, now_ms: int) -> Members:
    """Return the one record of a call whose grant was not accepted: nobody has vouched for the names it came with."""
    return {
        **_of_operation(operation),
        **who.correlation.members(),
        "type": DENIED,
        "envelope_id": names.envelope_id,
        "exec_id": names.exec_id,
        "call_id": _claimed(who.call_id),
        "tenant": _claimed(who.tenant),
        "subject_id": _claimed(who.subject_id),
        "tool_name": _claimed(who.tool_name),
        "time_ms": now_ms,
        "produced_at_ms": now_ms,
        "finished_at_ms": now_ms,
        **_refusal(refused, Status.DENIED),
    }


def _claimed(name: object) -> str:
    return effects.harmless_text(str(name), escaped="")


def end(begun: Mapping[str, Any], operation: Operation, outcome: Outcome, *, now_ms: int) -> Members:
    """Return what came of the execution that `begun` announced."""
    members = _ending(begun, now_ms)
    members.update(effects.observed(operation, outcome))
    used = outcome.used
    members["budget_used"] = {name: getattr(used, name) for name in _USED}
    members["duration_ms"] = used.wall_ms
    if isinstance(outcome, ExecutionResult):
        members.update(_of_result(outcome))
        runtime = effects.runtime_of(begun.get("language"), outcome.isolation)
        if runtime:
            members["runtime"] = runtime
    else:
        members["status"], members["outcome"], members["meter"] = "ok", str(Status.SUCCEEDED), "counted"
    return members


def end_by_error(
    begun: Mapping[str, Any],
    error: RingfenceError,
    status: Status,
    *,
    now_ms: int,
    done: BrokerOutcome | None = None,
) -> Members:
    """Return how an execution ended that brought no outcome: refused after it began, failed, or timed out.

    What was refused had no effect and used nothing, unless a broker says what it had `done` by then; of what failed or
    timed out nobody knows that, and nothing is said.
    """
    ended = {**_ending(begun, now_ms), **_refusal(error, status)}
    if done is not None:
        used = {name: getattr(done.used, name) for name in _USED}
        return {**ended, **effects.of_broker(done), "budget_used": used, "meter": "counted"}
    return {**ended, **_nothing_done()} if status is Status.DENIED else ended


def end_by_cancelling(begun: Mapping[str, Any], *, now_ms: int) -> Members:
    """Return how an execution ended whose caller no longer wanted it."""
    ended = {"status": "error", "outcome": str(Status.CANCELLED), "reason": "cancelled"}
    return {**_ending(begun, now_ms), **effects.unobserved(), **ended}


def end_of_orphan(begun: Mapping[str, Any], *, now_ms: int) -> Members:
    """Return the end of an execution whose process died: whether it was carried out, nobody can tell any more."""
    return {
        **_ending(begun, now_ms),
        **effects.unobserved(),
        "status": "error",
        "outcome": str(Status.ERROR),
        "error_code": "TOOL.EXECUTION_FAILED",
        "reason": ORPHANED,
        "retryable": False,
    }


def end_of_unstarted(begun: Mapping[str, Any], *, now_ms: int) -> Members:
    """Return the end of an execution that was not started, because its beginning seemed not to be written."""
    ended = {"status": "error", "outcome": str(Status.ERROR), "reason": "not_started"}
    return {**_ending(begun, now_ms), **ended, **_nothing_done()}


def _ending(begun: Mapping[str, Any], now_ms: int) -> Members:
    members = {name: begun[name] for name in _COMMON if name in begun}
    return {**members, "type": END, "time_ms": now_ms, "finished_at_ms": now_ms}


def _nothing_done() -> Members:
    return {"side_effects": [], "budget_used": dict.fromkeys(_USED, 0)}


def _of_result(result: ExecutionResult) -> Members:
    members: Members = {
        "status": _STATUS.get(result.status, "error"),
        "outcome": str(result.status),
        "timed_out": result.timed_out,
        "killed": result.killed,
        "backend": result.backend,
        "sandbox_type": str(result.sandbox_type),
        "sandbox_id": result.sandbox_id,
        "layers": {name: value for name, value in result.isolation.to_dict().items() if name != "container"},
        "meter": "sampled" if result.isolation.cgroup == "none" else "cgroup",
        "duration_us": round(result.elapsed_ms * 1000),
    }
    optional = {
        "exit_code": result.exit_code,
        "killed_by": result.killed_by,
        "error_code": result.error_code,
        "reason": result.reason,
        "error_reason": result.error,
    }
    members.update((name, value) for name, value in optional.items() if value is not None)
    if result.isolation.container is not None:
        # under 003's own names: what the box was made from, in place of what a manifest asked for
        members.update(result.isolation.container.to_dict())
    return members


def _refusal(error: RingfenceError, status: Status) -> Members:
    """Return what is safe to tell of an error: its message may quote what the caller sent."""
    return {
        "status": _STATUS.get(status, "error"),
        "outcome": str(status),
        "error_code": error.code,
        "reason": error.reason,
        "retryable": error.retryable,
    }


def _of_operation(operation: Operation) -> Members:
    """Return what is asked for, without what it carries."""
    members: Members = {
        "op": described.describe(operation),
        "capability": _capability(operation),
        "domain": operation.domain,
        "inputs_digest": described.inputs_digest_of(operation),
    }
    if isinstance(operation, CodeRun):
        members["language"] = members["cmd"] = str(operation.language)
        members["cwd"] = effects.harmless_text(operation.cwd)
        if operation.process_id is not None:
            members["process_id"] = operation.process_id
        if operation.env:
            members["env_keys"] = described.env_keys(operation)
        if operation.files or operation.inputs:
            members["inputs"] = described.inputs_of(operation)
    elif operation.kind == "proc_exec":
        members["cmd"], members["cwd"] = members["op"]["tool"], WORKING_DIRECTORY
    arguments = described.redacted_args(operation)
    if arguments:
        members["args"] = arguments
    return members


def _capability(operation: Operation) -> str:
    if isinstance(operation, CodeRun):
        return f"code.run:{operation.language}"
    from ringfence.operation.form import summary  # not at the top: most calls run code

    # a name that is no Unicode would keep its own refusal from being written down
    return effects.harmless_text(summary(operation), escaped="")


@lru_cache(maxsize=64)
def _limits(limits: Limits) -> Mapping[str, int]:
    """Return the limits without fractions: a record holds no number that JSON readers could round."""
    return {
        "wall_ms": round(limits.wall_seconds * 1000),
        "cpu_ms": round(limits.cpu_seconds * 1000),
        "millicpus": round(limits.cpus * 1000),
        "memory_bytes": limits.memory_bytes,
        "pids": limits.pids,
        "disk_bytes": limits.disk_bytes,
        "stdout_bytes": limits.stdout_bytes,
        "stderr_bytes": limits.stderr_bytes,
        "artifact_bytes": limits.artifact_bytes,
        "max_bytes_in": limits.max_bytes_in,
        "max_bytes_out": limits.max_bytes_out,
    }
