"""Results as the content store keeps them: a line of JSON for what is small, the bytes themselves behind it.

A result is found again by the whole operation and the profile it ran under: the same program with another argument,
another file or under other bounds is another call.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, Protocol

from ringfence.dataclass import fields, replace
from ringfence.errors import InvalidRequest
from ringfence.evidence.described import CannotTell, content_of
from ringfence.operation.code import WORKING_DIRECTORY, CodeRun, Language
from ringfence.operation.secret import read_ask
from ringfence.outcome import (
    Artifact,
    BrokerOutcome,
    Budget,
    Destination,
    Effect,
    ExecutionResult,
    FileChanges,
    Layers,
    Network,
    Outcome,
    Pending,
    SandboxType,
    Status,
)

if TYPE_CHECKING:
    from ringfence.operation.form import Operation

FORM: Final = 1
_MOST_HEAD_BYTES = 64 * 1024 * 1024
_APART = {"status", "stdout_raw", "stderr_raw", "sandbox_type", "isolation", "artifacts", "files_written"}
_APART |= {"notes", "changes", "pending", "network"}
_APART |= {"tainted"}  # of the call that got it, not of what came of it
_PLAIN = tuple(field.name for field in fields(ExecutionResult) if field.name not in _APART)


class Recorded(Protocol):
    """Where results are found again."""

    def find(self, op_digest: str, profile_hash: str) -> Outcome | None:
        """Return what came of the operation under the profile, or nothing when it was never recorded."""
        ...


def operation_digest(operation: Operation, session_id: str | None = None) -> str:
    """Return the name of an operation with everything it brings and whose files it works on, as `sha256:…`."""
    if not isinstance(operation, CodeRun):
        told: dict[str, Any] = {"op": operation.kind, "content": _sha256(content_of(operation))}
        if operation.kind == "fs_write":
            told |= {"path": operation.path, "overwrite": operation.overwrite}  # type: ignore[union-attr]
    else:
        told = {
            "op": operation.kind,
            "language": str(operation.language),
            "content": _sha256(content_of(operation)),
            "args": list(operation.args),
            "stdin": _sha256(operation.stdin),
            "files": {path: _sha256(content) for path, content in operation.files.items()},
            "inputs": {path: _sha256(content) for path, content in operation.inputs.items()},
            "env": dict(operation.env),
            "packages": list(operation.packages),
            "preload": list(operation.preload),
        }
        if operation.process_id is not None:
            told["process_id"] = operation.process_id
        if operation.cwd != WORKING_DIRECTORY:
            told["cwd"] = operation.cwd
        if operation.secrets:
            told["secrets"] = sorted(map(str, operation.secrets))
        if operation.ports:
            told["ports"] = sorted(operation.ports)
        if operation.domains:
            told["domains"] = sorted(operation.domains)
    if session_id is not None:
        told["session_id"] = session_id
    return "sha256:" + _sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode())


def operation_to_bytes(operation: Operation) -> bytes:
    """Return what `operation_from_bytes` reads: everything an operation was given; of a secret, its name."""
    if not isinstance(operation, CodeRun):
        from ringfence.operation.form import to_json

        return json.dumps(to_json(operation), sort_keys=True).encode()  # type: ignore[arg-type]
    form = {
        "op": operation.kind,
        "language": str(operation.language),
        "code": operation.code,
        "args": list(operation.args),
        "stdin": _text(operation.stdin),
        "files": {path: _text(content) for path, content in operation.files.items()},
        "inputs": {path: _text(content) for path, content in operation.inputs.items()},
        "env": dict(operation.env),
        "packages": list(operation.packages),
        "preload": list(operation.preload),
        "session_id": operation.session_id,
        "process_id": operation.process_id,
        "cwd": operation.cwd,
        "secrets": list(map(str, operation.secrets)),
        "ports": list(operation.ports),
        "domains": list(operation.domains),
    }
    return json.dumps(form, sort_keys=True).encode()


def operation_from_bytes(content: bytes) -> Operation | CannotTell:
    """Read an operation back, to carry it out again."""
    try:
        form = json.loads(content)
        if form.get("op") != CodeRun.kind:
            from ringfence.operation.form import from_json

            return from_json(form)
        return CodeRun(
            language=Language(form["language"]),
            code=form["code"],
            args=tuple(form["args"]),
            stdin=b64decode(form["stdin"]),
            files={path: b64decode(text) for path, text in form["files"].items()},
            inputs={path: b64decode(text) for path, text in form["inputs"].items()},
            env=form["env"],
            packages=tuple(form["packages"]),
            preload=tuple(form["preload"]),
            session_id=form["session_id"],
            process_id=form.get("process_id"),
            cwd=form.get("cwd", WORKING_DIRECTORY),
            secrets=tuple(map(read_ask, form.get("secrets", ()))),
            ports=tuple(form.get("ports", ())),
            domains=tuple(form.get("domains", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, InvalidRequest):
        return CannotTell("the recorded operation cannot be read")


def _text(content: bytes) -> str:
    return b64encode(content).decode()


def to_bytes(outcome: Outcome) -> bytes:
    """Return what `from_bytes` reads."""
    if isinstance(outcome, ExecutionResult):
        form, blobs = _of_run(outcome)
    else:
        form, blobs = _of_broker(outcome)
    form |= {"form": FORM, "sizes": [len(blob) for blob in blobs]}
    # ASCII: a file name that is no Unicode must come back as it was
    head = json.dumps(form, sort_keys=True, separators=(",", ":")).encode("ascii")
    return b"".join((head, b"\n", *blobs))


def from_bytes(content: bytes) -> Outcome | CannotTell:
    """Read a result back; what is cut off, longer, or of another form is not guessed at."""
    end = content.find(b"\n", 0, _MOST_HEAD_BYTES)
    if end < 0:
        return CannotTell("the recorded result has no head")
    try:
        form = json.loads(content[:end])
        if form["form"] != FORM:
            return CannotTell("the recorded result is of a form this version does not know")
        blobs = _cut(content, end + 1, form["sizes"])
        return _READERS[form["kind"]](form, blobs)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        return CannotTell("the recorded result cannot be read")


def _cut(content: bytes, start: int, sizes: list[int]) -> list[bytes]:
    if any(type(size) is not int or size < 0 for size in sizes) or start + sum(sizes) != len(content):
        raise ValueError("the sizes do not fit")
    blobs = []
    for size in sizes:
        blobs.append(content[start : start + size])
        start += size
    return blobs


def _of_run(result: ExecutionResult) -> tuple[dict[str, Any], list[bytes]]:
    form = {
        "kind": "run",
        "status": str(result.status),
        "sandbox_type": str(result.sandbox_type),
        "isolation": result.isolation.to_dict(),
        "artifacts": [artifact.to_dict() for artifact in result.artifacts],
        "files_written": list(result.files_written),
        "changes": asdict(result.changes),
        "notes": list(result.notes),
        **({} if result.pending is None else {"pending": result.pending.to_dict()}),
        **({} if result.network is None else {"network": asdict(result.network)}),
        "plain": {name: getattr(result, name) for name in _PLAIN},
    }
    return form, [result.stdout_raw, result.stderr_raw, *(artifact.content for artifact in result.artifacts)]


def _run_of(form: Mapping[str, Any], blobs: list[bytes]) -> ExecutionResult:
    stdout, stderr, *contents = blobs
    result = ExecutionResult(
        Status(form["status"]),
        stdout_raw=stdout,
        stderr_raw=stderr,
        sandbox_type=SandboxType(form["sandbox_type"]),
        isolation=Layers.from_dict(form["isolation"]),
        artifacts=tuple(
            Artifact(entry["path"], entry["size"], entry["sha256"], content)
            for entry, content in zip(form["artifacts"], contents, strict=True)
        ),
        files_written=tuple(form["files_written"]),
        changes=_changes(form["changes"]),
        notes=tuple(form["notes"]),
        pending=Pending.from_dict(form["pending"]) if "pending" in form else None,
        network=_network(form["network"]) if "network" in form else None,
    )
    return replace(result, **{name: form["plain"][name] for name in _PLAIN if name in form["plain"]})


def _changes(form: Mapping[str, Any]) -> FileChanges:
    return FileChanges(
        sizes=tuple(form["sizes"]),
        deleted=tuple(form["deleted"]),
        uncollected=tuple((path, why) for path, why in form["uncollected"]),
        complete=form["complete"],
        kept=form["kept"],
        denied=tuple(form.get("denied", ())),
    )


def _network(form: Mapping[str, Any]) -> Network:
    places = tuple(Destination(**place) for place in form["destinations"])
    return Network(places, form["not_shown"], form["complete"])


def _of_broker(outcome: BrokerOutcome) -> tuple[dict[str, Any], list[bytes]]:
    form = {
        "kind": "broker",
        "operation": outcome.operation,
        "out": _plain(outcome.out),
        "used": {field.name: getattr(outcome.used, field.name) for field in fields(Budget)},
        "effects": [{"kind": effect.kind, "meta": dict(effect.meta)} for effect in outcome.effects],
        "exec_id": outcome.exec_id,
    }
    return form, [] if outcome.content is None else [outcome.content]


def _broker_of(form: Mapping[str, Any], blobs: list[bytes]) -> BrokerOutcome:
    if len(blobs) > 1:
        raise ValueError("a broker brings one content")
    return BrokerOutcome(
        form["operation"],
        form["out"],
        blobs[0] if blobs else None,
        Budget(**form["used"]),
        tuple(Effect(effect["kind"], effect["meta"]) for effect in form["effects"]),
        form["exec_id"],
    )


_READERS: dict[str, Callable[[Mapping[str, Any], list[bytes]], Outcome]] = {"run": _run_of, "broker": _broker_of}


def _plain(value: Any) -> Any:
    """Return what a broker tells as JSON has it: mappings as objects, rows as lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
