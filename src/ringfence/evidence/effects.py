"""What was observed of one execution, in the members of its `exec.end`: digests, sizes and names, never content.

Every list says whether it is `complete`. Names that a guest or a caller chose are hostile until they are escaped
here: no control character, no lone surrogate and no flood of them reaches a record.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ringfence.operation import CodeRun
from ringfence.outcome import (
    Artifact,
    BrokerOutcome,
    Destination,
    ExecutionResult,
    Layers,
    Network,
    Outcome,
    Pending,
    SandboxType,
)

if TYPE_CHECKING:
    from ringfence.operation.form import Operation

MOST_NAMES: Final = 256
MOST_NAME_CHARACTERS: Final = 512

_WORKSPACE: Final = "/workspace"
_EXACT: Final = 2**53  # what every JSON reader keeps
_DESTINATION: Final = ("host", "port", "method", "address", "status", "bytes_in", "bytes_out", "decision")
_OF_A_BOX: Final = (
    *("host", "port", "method", "address", "bytes_in", "bytes_out", "decision", "reason", "count", "secret"),
)
# The boxes that are built around an empty network namespace; another kind may have a route in its own.
_WITHOUT_ROUTE: Final = frozenset({SandboxType.NATIVE, SandboxType.BWRAP, SandboxType.DOCKER, SandboxType.GVISOR})
_OF_NOTHING: Final = {"algo": "sha256", "b64": "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", "size": 0}

# A name the guest chose comes with its odd bytes as %XX already; one that a caller spelled does not.
_GUESTS: Final = ""
_CALLERS: Final = "%\\"


def observed(operation: Operation, outcome: Outcome) -> dict[str, Any]:
    """Return what is known of the effects of `operation`, which came to `outcome`.

    Paths are relative to `/workspace`, as guest and broker see it. Where output was truncated, its digest, with the
    size in it, is of what was kept, and `bytes` counts what was written. What nobody measured is absent.
    """
    return of_broker(outcome) if isinstance(outcome, BrokerOutcome) else _of_box(operation, outcome)


def runtime_of(language: str | None, layers: Layers) -> str:
    """Return the `runtime` member: what of this machine ran the program; nothing where an image brought its own."""
    if language is None or not layers.runtime:
        return ""
    return "bash" if language == "bash" else layers.runtime


def unobserved() -> dict[str, Any]:
    """Return the same members for an execution whose end nobody saw: nothing is known, and nothing is complete."""
    return {
        "side_effects": [],
        "files_written": {"paths": [], "complete": False},
        "files_read": {"paths": [], "complete": False},
        "network": {"destinations": [], "complete": False},
        "processes": {"complete": False},
    }


def reached_so_far(networks: Iterable[Network]) -> dict[str, Any]:
    """Return the member that tells where a run went that ended without a result; nothing, where it had no way out."""
    known = tuple(networks)
    places = [{key: _plain(value) for key, value in _told(place)} for each in known for place in each.destinations]
    return {"network": {"destinations": places, "complete": False}} if known else {}


def harmless_text(text: str, *, escaped: str = _CALLERS) -> str:
    """Return `text` without anything that acts on a terminal or breaks a record, still distinct from every other.

    Beyond `MOST_NAME_CHARACTERS` the digest of the whole stands for the rest, so that two long names that begin alike
    still differ.
    """
    text = printable_text(text, escaped=escaped)
    if len(text) > MOST_NAME_CHARACTERS:
        return f"{text[:MOST_NAME_CHARACTERS]}…sha256:{_sha256(text.encode()).hex()}"
    return text


def printable_text(text: str, *, escaped: str) -> str:
    """Return `text`, however long, with what is not printable and each character of `escaped` as `%XX` bytes."""
    if text.isprintable() and not any(character in text for character in escaped):
        return text
    return "".join(_shown(character, escaped) for character in text)


def _shown(character: str, escaped: str) -> str:
    if character.isprintable() and character not in escaped:
        return character
    # surrogateescape gives the byte back that a name was decoded from; a surrogate from anywhere else has its own
    handler = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", handler))


# --- code and programs in a box ---


def _of_box(operation: Operation, result: ExecutionResult) -> dict[str, Any]:
    stdout, stderr = _digest(result.stdout_raw), _digest(result.stderr_raw)
    record: dict[str, Any] = {
        "outputs_digest": _outputs(stdout, stderr, result.artifacts),
        "stdout": {"digest": stdout, "bytes": result.stdout_bytes, "truncated": result.stdout_truncated},
        "stderr": {"digest": stderr, "bytes": result.stderr_bytes, "truncated": result.stderr_truncated},
        "artifacts": [],
        "side_effects": [],
        "files_written": {"paths": [], "complete": result.changes.complete},
        "files_read": _brought(operation),
        "network": _reached(result),
        "processes": _processes(result.tasks_peak),
        "cpu_ms": _number(result.cpu_ms),
    }
    if result.memory_peak_bytes is not None:
        record["memory_used_bytes"] = _number(result.memory_peak_bytes)
    if result.artifacts or result.files_written or result.changes.deleted or result.changes.uncollected:
        _add_files(record, result)
    return record


def _add_files(record: dict[str, Any], result: ExecutionResult) -> None:
    changes, artifacts = result.changes, result.artifacts
    left = [each.path for each in artifacts] + [path for path, _ in changes.uncollected]
    written = [f"artifacts/{path}" for path in sorted(left)]
    written += [f"work/{name}" for name in result.files_written]
    record["files_written"] = _names(written, complete=changes.complete, escaped=_GUESTS)
    record["artifacts"] = [_artifact(each) for each in artifacts[:MOST_NAMES]]
    if len(artifacts) > MOST_NAMES:
        record["artifacts_left_out"] = len(artifacts) - MOST_NAMES
    kept = {} if changes.kept else {"kept": False}
    sizes: Iterable[int | None] = changes.sizes or (None,) * len(result.files_written)
    effects = [_write(f"artifacts/{each.path}", bytes=_number(each.size)) for each in artifacts[:MOST_NAMES]]
    effects += [_write(f"artifacts/{path}", uncollected=why) for path, why in changes.uncollected[:MOST_NAMES]]
    effects += [
        _write(f"work/{name}", **({} if size is None else {"bytes": _number(size)}), **kept)
        for name, size in zip(result.files_written[:MOST_NAMES], sizes, strict=False)
    ]
    effects += [_write(f"work/{name}", deleted=True, **kept) for name in changes.deleted[:MOST_NAMES]]
    record["side_effects"] = effects[:MOST_NAMES]
    if changes.denied:
        denied = [f"work/{path}" for path in changes.denied]
        record["changes_denied"] = _names(denied, complete=True, escaped=_GUESTS)
    if changes.excess is not None:
        record["changes_too_large"] = dict(zip(("paths", "bytes"), map(_number, changes.excess), strict=True))
    if result.pending is not None:
        record["pending"] = _pending(result.pending)
    left_out = len(left) + len(result.files_written) + len(changes.deleted) - MOST_NAMES
    if left_out > 0:
        record["side_effects_left_out"] = left_out


def _pending(pending: Pending) -> dict[str, Any]:
    """Tell how much waits to be decided on, or was only shown; what it is, the side effects say."""
    counts = {name: len(getattr(pending, name)) for name in ("added", "modified", "deleted")}
    return {**counts, "waits": pending.expires_at_ms is not None, "complete": pending.complete}


def _write(path: str, **meta: bool | int | str) -> dict[str, Any]:
    return {"kind": "write", "meta": {"path": harmless_text(path, escaped=_GUESTS), **meta}}


def _artifact(artifact: Artifact) -> dict[str, Any]:
    path = harmless_text(artifact.path, escaped=_GUESTS)
    return {"path": path, "size": _number(artifact.size), "sha256": artifact.sha256}


def _brought(operation: Operation) -> dict[str, Any]:
    """Name what was placed for the guest; what it read of that, of its session and of its runtime, nobody watched."""
    if not isinstance(operation, CodeRun) or not (operation.files or operation.inputs):
        return {"paths": [], "complete": False}
    brought = [f"inputs/{name}" for name in operation.inputs] + [f"work/{name}" for name in operation.files]
    return _names(sorted(brought), complete=False, escaped=_CALLERS)


def _reached(result: ExecutionResult) -> dict[str, Any]:
    """Tell where a run's connections went; one without a way out reached nothing, where its box has no route."""
    network = result.network
    if network is None:
        return {"destinations": [], "complete": _has_no_route(result)}
    reached: dict[str, Any] = {
        "destinations": [{key: _plain(value) for key, value in _told(place)} for place in network.destinations],
        "complete": network.complete and not network.not_shown and _has_no_route(result),
    }
    return reached | ({"left_out": network.not_shown} if network.not_shown else {})


def _told(place: Destination) -> Iterable[tuple[str, str | int]]:
    return ((name, value) for name in _OF_A_BOX if (value := getattr(place, name)) != "")


def _has_no_route(result: ExecutionResult) -> bool:
    return result.sandbox_type in _WITHOUT_ROUTE and "net" in result.isolation.namespaces


def _processes(peak: int | None) -> dict[str, Any]:
    return {"complete": False} if peak is None else {"peak": peak, "complete": True}


def _outputs(stdout: Mapping[str, Any], stderr: Mapping[str, Any], artifacts: Sequence[Artifact]) -> dict[str, Any]:
    """Digest all that came out: both streams as they were kept, then every artifact by name; `size` is their sum."""
    if not artifacts and not stdout["size"] and not stderr["size"]:
        return {**_OF_NOTHING}
    lines = [f"stdout {stdout['b64']}", f"stderr {stderr['b64']}"]
    lines += [f"{artifact.sha256} {harmless_text(artifact.path, escaped=_GUESTS)}" for artifact in artifacts]
    size = stdout["size"] + stderr["size"] + sum(artifact.size for artifact in artifacts)
    return {**_digest("\n".join(lines).encode()), "size": _number(size)}


# --- brokered operations ---


def of_broker(outcome: BrokerOutcome) -> dict[str, Any]:
    """Tell what a broker did itself, which is therefore all of it."""
    read: list[str] = []
    written: list[str] = []
    destinations: list[dict[str, Any]] = []
    for effect in outcome.effects:
        meta = effect.meta
        if "host" in meta:
            destinations.append({key: _plain(meta[key]) for key in _DESTINATION if key in meta})
        elif "path" in meta and "deleted" not in meta:
            (read if effect.kind == "read" else written).append(_in_workspace(str(meta["path"])))
    effects = [{"kind": effect.kind, "meta": _meta(effect.meta)} for effect in outcome.effects[:MOST_NAMES]]
    record: dict[str, Any] = {
        "outputs_digest": _of_answer(outcome.out),
        "artifacts": [],
        "side_effects": effects,
        "files_written": _names(written, complete=True, escaped=_CALLERS),
        "files_read": _names(read, complete=True, escaped=_CALLERS),
        "network": {"destinations": destinations[:MOST_NAMES], "complete": len(destinations) <= MOST_NAMES},
        "processes": {"peak": 0, "complete": True},
    }
    if len(outcome.effects) > MOST_NAMES:
        record["side_effects_left_out"] = len(outcome.effects) - MOST_NAMES
    if len(destinations) > MOST_NAMES:
        record["network"]["left_out"] = len(destinations) - MOST_NAMES
    return record


def _of_answer(out: Mapping[str, Any]) -> dict[str, Any]:
    """Return the broker's own digest of the content where it moved some, and one of its answer where it moved none."""
    digest = out.get("digest")
    if isinstance(digest, Mapping):
        return dict(digest)
    import json  # not at the top: a run of code has no such answer

    return _digest(json.dumps(out, sort_keys=True, separators=(",", ":"), default=str).encode())


def _meta(meta: Mapping[str, str | int]) -> dict[str, str | int]:
    return {key: _plain(_in_workspace(str(value)) if key == "path" else value) for key, value in meta.items()}


def _plain(value: str | int) -> str | int:
    return _number(value) if isinstance(value, int) else harmless_text(str(value))


def _in_workspace(path: str) -> str:
    if path == _WORKSPACE:
        return "."
    return path.removeprefix(_WORKSPACE + "/")


# --- what both say ---


def _names(names: Sequence[str], *, complete: bool, escaped: str) -> dict[str, Any]:
    shown = [harmless_text(name, escaped=escaped) for name in names[:MOST_NAMES]]
    if len(names) <= MOST_NAMES:
        return {"paths": shown, "complete": complete}
    return {"paths": shown, "complete": False, "left_out": len(names) - MOST_NAMES}


def _number(value: int) -> int | str:
    """Return a number as JSON can keep it; a guest can make a file of holes larger than that."""
    return value if -_EXACT <= value <= _EXACT else str(value)


def _digest(content: bytes) -> dict[str, Any]:
    if not content:
        return {**_OF_NOTHING}
    return {"algo": "sha256", "b64": b2a_base64(_sha256(content), newline=False).decode("ascii"), "size": len(content)}


def _sha256(content: bytes) -> bytes:
    import hashlib  # not at the top: importing it costs more than a run

    return hashlib.sha256(content).digest()
