"""Outcomes as JSON and back: the one form in which the command, the service and its client tell what came of a run."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeVar

from ringfence.authority.taint import Tainted
from ringfence.dataclass import fields
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.outcome import (
    Artifact,
    BrokerOutcome,
    Budget,
    Container,
    Destination,
    Effect,
    ExecutionResult,
    FileChanges,
    Layers,
    Mount,
    Network,
    Pending,
    SandboxType,
    Status,
)

Form = Mapping[str, Any]
ArtifactOf = Callable[[str, int, str], Artifact]
"""Makes the artifact whose path, size and digest are known, and whose bytes are elsewhere."""
_AMOUNTS: Final = tuple(field.name for field in fields(Budget))
_T = TypeVar("_T")


def result_fields(result: ExecutionResult) -> dict[str, Any]:
    """Return every field of a result that a person or a program may ask for, as plain JSON values."""
    return {
        "success": result.success,
        "status": str(result.status),
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "stdout_truncated": result.stdout_truncated,
        "stderr_truncated": result.stderr_truncated,
        "stdout_left_out": result.stdout_left_out,
        "stderr_left_out": result.stderr_left_out,
        "killed_by": result.killed_by,
        "risk": result.risk,
        "sandbox_id": result.sandbox_id,
        "timed_out": result.timed_out,
        "killed": result.killed,
        "error": result.error,
        "error_code": result.error_code,
        "reason": result.reason,
        "elapsed_ms": result.elapsed_ms,
        "cpu_ms": result.cpu_ms,
        "memory_peak_bytes": result.memory_peak_bytes,
        "sandbox_type": str(result.sandbox_type),
        "backend": result.backend,
        "isolation": result.isolation.to_dict(),
        "artifacts": [artifact.to_dict() for artifact in result.artifacts],
        "files_written": list(result.files_written),
        "exec_id": result.exec_id,
        "evidence_id": result.evidence_id,
        "out": dict(result.out),
        "used": _amounts(result.used),
        "notes": list(result.notes),
        "pending": None if result.pending is None else result.pending.to_dict(),
        "network": None if result.network is None else _plain(asdict(result.network)),
        "tainted": None if result.tainted is None else result.tainted.to_dict(),
        "kept_in": result.kept_in,
    }


def result_form(result: ExecutionResult) -> dict[str, Any]:
    """Return the fields with all that `read_result` needs to make an equal result of them."""
    form = result_fields(result)
    for name, raw, text in (
        ("stdout_b64", result.stdout_raw, result.stdout),
        ("stderr_b64", result.stderr_raw, result.stderr),
    ):
        if "\ufffd" in text:  # perhaps not UTF-8, and then the text has lost what the bytes were
            form[name] = base64.b64encode(raw).decode()
    changes = result.changes
    form["changes"] = {
        "sizes": list(changes.sizes),
        "deleted": list(changes.deleted),
        "uncollected": [list(entry) for entry in changes.uncollected],
        "complete": changes.complete,
        "kept": changes.kept,
        "denied": list(changes.denied),
        "excess": None if changes.excess is None else list(changes.excess),
    }
    form["tasks_peak"] = result.tasks_peak
    form["value"] = result.value
    form["digests"] = None if result.digests is None else dict(result.digests)
    return form


def _amounts(used: Budget) -> dict[str, Any]:
    return {name: getattr(used, name) for name in _AMOUNTS}  # numbers, which need no copying


def broker_form(outcome: BrokerOutcome) -> dict[str, Any]:
    """Return what came of a brokered operation as plain JSON values, its content among them."""
    return {
        "operation": outcome.operation,
        "out": _plain(outcome.out),
        "content_b64": None if outcome.content is None else base64.b64encode(outcome.content).decode(),
        "used": _amounts(outcome.used),
        "effects": [{"kind": effect.kind, "meta": dict(effect.meta)} for effect in outcome.effects],
        "exec_id": outcome.exec_id,
        "evidence_id": outcome.evidence_id,
        "tainted": None if outcome.tainted is None else outcome.tainted.to_dict(),
    }


def read_result(form: object, artifact_of: ArtifactOf = Artifact) -> ExecutionResult:
    """Return the result that `result_form` wrote; members that are not known are another release's, and left out.

    Raises:
        Unavailable: It is no result.
    """
    form = read_object(form)
    layers = read_object(form.get("isolation", {}))
    return ExecutionResult(
        status=read_one_of(Status, form, "status"),
        exit_code=_maybe(form, "exit_code", int),
        stdout_raw=_output(form, "stdout"),
        stderr_raw=_output(form, "stderr"),
        stdout_bytes=read_member(form, "stdout_bytes", int),
        stderr_bytes=read_member(form, "stderr_bytes", int),
        stdout_truncated=read_member(form, "stdout_truncated", bool),
        stderr_truncated=read_member(form, "stderr_truncated", bool),
        stdout_left_out=_maybe(form, "stdout_left_out", int) or 0,
        stderr_left_out=_maybe(form, "stderr_left_out", int) or 0,
        killed_by=_maybe(form, "killed_by", str),
        error=_maybe(form, "error", str),
        error_code=_maybe(form, "error_code", str),
        reason=_maybe(form, "reason", str),
        elapsed_ms=float(read_member(form, "elapsed_ms", (int, float))),
        cpu_ms=read_member(form, "cpu_ms", int),
        memory_peak_bytes=_maybe(form, "memory_peak_bytes", int),
        sandbox_id=read_member(form, "sandbox_id", str),
        sandbox_type=read_one_of(SandboxType, form, "sandbox_type"),
        backend=read_member(form, "backend", str),
        isolation=Layers(
            namespaces=_texts(layers, "namespaces"),
            capabilities_empty=read_member(layers, "capabilities_empty", bool),
            no_new_privs=read_member(layers, "no_new_privs", bool),
            seccomp_filters=read_member(layers, "seccomp_filters", int),
            landlock_abi=read_member(layers, "landlock_abi", int),
            cgroup=read_member(layers, "cgroup", str),
            host_uid=read_member(layers, "host_uid", int),
            memory_limit=read_member(layers, "memory_limit", str),
            notes=_texts(layers, "notes"),
            chosen=_maybe(layers, "chosen", str) or "",
            container=_container(layers.get("container")),
            runtime=_maybe(layers, "runtime", str) or "",
        ),
        artifacts=tuple(_artifact(entry, artifact_of) for entry in read_member(form, "artifacts", list)),
        files_written=_texts(form, "files_written"),
        changes=_changes(form.get("changes", {})),
        pending=_pending(form.get("pending")),
        network=_network(form.get("network")),
        tasks_peak=_maybe(form, "tasks_peak", int),
        value=_maybe(form, "value", str),
        notes=_texts(form, "notes"),
        exec_id=read_member(form, "exec_id", str),
        evidence_id=_maybe(form, "evidence_id", str),
        risk=_maybe(form, "risk", str),
        kept_in=_maybe(form, "kept_in", str),
        digests=None if form.get("digests") is None else read_object(form["digests"]),
        tainted=_tainted(form.get("tainted")),
    )


def read_broker(form: object) -> BrokerOutcome:
    """Return the outcome that `broker_form` wrote.

    Raises:
        Unavailable: It is none.
    """
    form = read_object(form)
    content = _maybe(form, "content_b64", str)
    return BrokerOutcome(
        operation=read_member(form, "operation", str),
        out=read_object(form.get("out", {})),
        content=None if content is None else read_base64("content_b64", content),
        used=_used(form.get("used", {})),
        effects=tuple(
            Effect(read_member(effect, "kind", str), read_object(effect.get("meta", {})))
            for effect in map(read_object, read_member(form, "effects", list))
        ),
        exec_id=read_member(form, "exec_id", str),
        evidence_id=_maybe(form, "evidence_id", str),
        tainted=_tainted(form.get("tainted")),
    )


def _tainted(form: object) -> Tainted | None:
    if form is None:
        return None
    form = read_object(form)
    return Tainted(read_member(form, "by", str), read_member(form, "reached", str), read_member(form, "at_ms", int))


def _container(form: object) -> Container | None:
    if form is None:
        return None
    form = read_object(form)
    return Container(
        image=read_member(form, "image", str),
        image_digest=read_member(form, "image_digest", str),
        argv=_texts(form, "argv"),
        mounts=tuple(
            Mount(*(read_member(each, name, str) for name in ("source", "target", "mode")))
            for each in map(read_object, read_member(form, "mounts", list))
        ),
    )


def _network(form: object) -> Network | None:
    if form is None:
        return None
    form = read_object(form)
    places = read_member(form, "destinations", list)
    return Network(
        tuple(_destination(read_object(place)) for place in places),
        read_member(form, "not_shown", int),
        read_member(form, "complete", bool),
    )


def _destination(form: Form) -> Destination:
    words = ("host", "decision", "reason", "method", "address")
    counts = ("port", "count", "bytes_in", "bytes_out")
    members: dict[str, Any] = {name: read_member(form, name, str) for name in words}
    members["secret"] = _maybe(form, "secret", str) or ""
    return Destination(**(members | {name: read_member(form, name, int) for name in counts}))


def _pending(form: object) -> Pending | None:
    if form is None:
        return None
    form = read_object(form)
    return Pending(
        exec_id=read_member(form, "exec_id", str),
        added=_texts(form, "added"),
        modified=_texts(form, "modified"),
        deleted=_texts(form, "deleted"),
        diff=read_member(form, "diff", str),
        complete=read_member(form, "complete", bool),
        size=read_member(form, "size", int),
        expires_at_ms=_maybe(form, "expires_at_ms", int),
    )


def wrong_form(what: str) -> Unavailable:
    """Return the error for an answer that no service of this release gives."""
    return Unavailable(
        f"the service's answer has no {what} that can be read",
        reason="bad_answer",
        fix="see that the address is a ringfence service of the same release",
    )


_COUNTED: Final = tuple(field.name for field in fields(Budget))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    return [_plain(member) for member in value] if isinstance(value, list | tuple) else value


def read_object(value: object) -> dict[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise wrong_form("object")
    return value


def read_member(form: Form, name: str, kind: type[_T] | tuple[type[_T], ...]) -> _T:
    """Return a member of this type."""
    value = form.get(name)
    # true is a whole number to Python, and to nobody else
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise wrong_form(f"{name!r}")
    return value


def _maybe(form: Form, name: str, kind: type[_T]) -> _T | None:
    """Return a member of this type; it may be absent or null."""
    return None if form.get(name) is None else read_member(form, name, kind)


def read_one_of(kind: Any, form: Form, name: str) -> Any:
    """Return the choice that a member names."""
    try:
        return kind(form.get(name))
    except ValueError:
        raise wrong_form(f"{name!r}") from None


def _texts(form: Form, name: str) -> tuple[str, ...]:
    values = read_member(form, name, list)
    if not all(isinstance(value, str) for value in values):
        raise wrong_form(f"{name!r}")
    return tuple(values)


def _output(form: Form, name: str) -> bytes:
    encoded = _maybe(form, f"{name}_b64", str)
    if encoded is not None:
        return read_base64(f"{name}_b64", encoded)
    try:
        return read_member(form, name, str).encode()
    except UnicodeEncodeError:  # half a character: JSON can write it, UTF-8 cannot
        raise wrong_form(f"{name!r}") from None


def read_base64(name: str, encoded: str) -> bytes:
    """Return the bytes that a text stands for."""
    try:
        return base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raise wrong_form(f"{name!r}") from None


def _artifact(entry: object, artifact_of: ArtifactOf) -> Artifact:
    form = read_object(entry)
    return artifact_of(read_member(form, "path", str), read_member(form, "size", int), read_member(form, "sha256", str))


def _used(value: object) -> Budget:
    form = read_object(value)
    try:
        return Budget(**{name: _maybe(form, name, int) for name in _COUNTED if name in form})  # type: ignore[arg-type]
    except InvalidRequest:  # beyond what anything can have used
        raise wrong_form("'used'") from None


def _changes(value: object) -> FileChanges:
    form = read_object(value)
    if not form:
        return FileChanges()
    sizes = read_member(form, "sizes", list)
    uncollected = [_texts({"uncollected": entry}, "uncollected") for entry in read_member(form, "uncollected", list)]
    if any(not isinstance(size, int) for size in sizes) or any(len(entry) != 2 for entry in uncollected):
        raise wrong_form("'changes'")
    return FileChanges(
        sizes=tuple(sizes),
        deleted=_texts(form, "deleted"),
        uncollected=tuple((path, why) for path, why in uncollected),
        complete=read_member(form, "complete", bool),
        kept=read_member(form, "kept", bool),
        denied=_texts(form, "denied") if "denied" in form else (),
        excess=_excess(form.get("excess")),
    )


def _excess(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or [type(number) for number in value] != [int, int]:
        raise wrong_form("'changes'")
    return value[0], value[1]
