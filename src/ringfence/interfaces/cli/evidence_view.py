"""The two records of an execution as a person reads them: who, what, on whose word, how isolated, with what effect."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from ringfence.errors import InvalidRequest

Members = Mapping[str, Any]

_WHO: Final = (
    ("tenant", "tenant"),
    ("space_id", "space"),
    ("user_id", "user"),
    ("subject_id", "subject"),
    ("session_id", "session"),
    ("conversation_id", "conversation"),
    ("turn_id", "turn"),
    ("task_id", "task"),
    ("project_id", "project"),
    ("skill_id", "skill"),
    ("process_id", "process"),
    ("request_id", "request"),
    ("traceparent", "trace"),
)
_SIZES: Final = {"memory_bytes": "memory", "disk_bytes": "disk", "stdout_bytes": "stdout", "stderr_bytes": "stderr"}
_TIMES: Final = {"wall_ms": "wall", "cpu_ms": "cpu"}
_WIDTH: Final = 13
_MOST_NAMES: Final = 8


def told_lines(exec_id: str, records: Sequence[Members]) -> Iterator[str]:
    """Yield what the records of one execution say; of a record that somebody forged, what can be read of it."""
    begin: Members = records[0]
    end: Members = records[-1] if len(records) > 1 or begin.get("type") == "decision.denied" else {}
    for name, tell in _PARTS:
        try:
            lines = [line for line in tell(exec_id, begin, end) if line]
        except (TypeError, ValueError, LookupError, AttributeError, InvalidRequest):
            lines = ["what the record says of it cannot be read"]
        for number, line in enumerate(lines):
            yield f"{name if number == 0 else '':<{_WIDTH}}{line}"


def _ending(begin: Members, end: Members) -> str:
    if not end:
        return "has not ended" if begin else "its records are gone"
    outcome = str(end.get("outcome", "?"))
    extra = []
    if "exit_code" in end:
        extra.append(f"exit code {end['exit_code']}")
    why = " ".join(str(end[name]) for name in ("error_code", "reason") if end.get(name))
    if why and why != "exit_code":
        extra.append(why)
    if end.get("error_reason"):
        extra.append(str(end["error_reason"]))
    return f"{outcome} ({'; '.join(extra)})" if extra else outcome


def _when(begin: Members, end: Members) -> str:
    from ringfence.evidence.projections.run import rfc3339

    started = begin.get("produced_at_ms", begin.get("time_ms"))
    if not isinstance(started, int):
        return ""
    took = f", took {end['duration_us'] / 1000:g} ms" if isinstance(end.get("duration_us"), int) else ""
    return rfc3339(started) + took


def _what(begin: Members) -> list[str]:
    if not begin:
        return []
    op = begin.get("op", {})
    lines = [f"{begin.get('tool_name', '?')}: {begin.get('capability', op.get('kind', '?'))}"]
    digest = begin.get("inputs_digest")
    if isinstance(digest, Mapping):
        of = "program" if op.get("kind") == "code_run" else "content" if op.get("kind") == "fs_write" else "operation"
        lines.append(f"{of} {_digest(digest)}")
    if begin.get("args"):
        lines.append(f"arguments {', '.join(map(str, begin['args']))} (sizes only)")
    if op.get("stdin_bytes"):
        lines.append(f"{op['stdin_bytes']} bytes of standard input")
    if op.get("packages"):
        lines.append(f"packages {', '.join(map(str, op['packages']))}")
    for name, shown in (("secrets", "secrets"), ("domains", "hosts"), ("ports", "ports")):
        if op.get(name):
            lines.append(f"{shown} {', '.join(map(str, op[name]))}")
    if begin.get("env_keys"):
        lines.append(f"variables {', '.join(map(str, begin['env_keys']))} (names only)")
    return [*lines, *(f"input {_file(each)}" for each in begin.get("inputs", ())[:_MOST_NAMES])]


def _word(begin: Members) -> list[str]:
    lines = []
    if begin.get("grant_id"):
        signed = (
            "a signed grant" if "grant" in begin.get("documents", {}) else "granted by this process from the policy"
        )
        lines.append(f"grant {begin['grant_id']}, {signed}")
    if begin.get("role"):
        lines.append(f"role {begin['role']}")
    consent = begin.get("consent")
    if isinstance(consent, Mapping) and consent.get("source"):
        given = f" {consent['consent_id']}" if consent.get("consent_id") else ""
        by = f", by {consent['approver']}" if consent.get("approver") else ""
        lines.append(f"consent of {consent['source']}{given}{by}")
    return lines


def _law(begin: Members) -> list[str]:
    lines = []
    for name, digest in sorted(begin.get("documents", {}).items()):
        lines.append(f"{name} {digest}")
    if not lines and begin.get("policy_version_hash"):
        lines.append(f"policy {begin['policy_version_hash']}")
    if begin.get("profile_hash"):
        lines.append(f"profile {begin['profile_hash']}")
    risk = begin.get("risk")
    if isinstance(risk, Mapping):
        parts = [f"{name} {risk[name]}" for name in ("declared", "assessed") if name in risk]
        lines.append(f"risk {risk.get('effective', '?')}{' (' + ', '.join(parts) + ')' if parts else ''}")
        if risk.get("patterns"):
            lines.append(f"saw {'; '.join(map(str, risk['patterns']))}")
    modes = [
        f"{name.replace('_', ' ')} {begin[name]}" for name in ("security_mode", "mode", "side_effect") if name in begin
    ]
    lines.append(", ".join(modes))
    return lines


def _refusal(end: Members) -> list[str]:
    lines = [str(end.get("rule") or end.get("reason") or "?")]
    for answer in end.get("answers", ()):
        if isinstance(answer, Mapping) and answer.get("decision") != "allow":
            told = " ".join(str(answer[name]) for name in ("code", "reason") if answer.get(name))
            lines.append(f"{answer.get('rule')}: {answer.get('decision')} {told}")
    return lines


def _limits(limits: Members) -> str:
    parts = [f"{shown} {limits[name] / 1000:g} s" for name, shown in _TIMES.items() if name in limits]
    parts += [f"{shown} {limits[name] / 1048576:g} MiB" for name, shown in _SIZES.items() if name in limits]
    if "pids" in limits:
        parts.append(f"{limits['pids']} processes")
    return ", ".join(parts)


def _isolation(begin: Members, end: Members) -> list[str]:
    layers = end.get("layers")
    lines = [f"asked for {begin.get('isolation', '?')}, observed {end.get('backend', '?')} {end.get('sandbox_id', '')}"]
    if end.get("runtime"):
        lines.append(f"runtime {end['runtime']}")
    if not isinstance(layers, Mapping):
        return lines
    spaces = layers.get("namespaces") or ()
    held = [f"namespaces {' '.join(map(str, spaces))}" if spaces else "no namespaces"]
    held.append(f"{layers.get('seccomp_filters', 0)} seccomp filters")
    held.append(f"landlock {layers.get('landlock_abi') or 'none'}")
    held.append(f"cgroup {layers.get('cgroup', 'none')}")
    held.append("no new privileges" if layers.get("no_new_privs") else "new privileges possible")
    held.append("no capabilities" if layers.get("capabilities_empty") else "capabilities left")
    lines.append(", ".join(held))
    lines += [str(note) for note in layers.get("notes") or ()]
    return lines


def _outputs(end: Members) -> list[str]:
    lines = []
    for name in ("stdout", "stderr"):
        stream = end.get(name)
        if isinstance(stream, Mapping):
            cut = f", cut from {stream.get('bytes')} bytes" if stream.get("truncated") else ""
            lines.append(f"{name} {_digest(stream.get('digest'))}{cut}")
    if not lines:
        lines.append(_digest(end.get("outputs_digest")))
    lines += [f"artifact {_file(each)}" for each in end.get("artifacts", ())[:_MOST_NAMES]]
    more = len(end.get("artifacts", ())) - _MOST_NAMES
    if more > 0:
        lines.append(f"and {more} artifacts more")
    return lines


def _effects(end: Members) -> list[str]:
    lines = []
    for name, shown in (("files_written", "wrote"), ("files_read", "read")):
        files = end.get(name)
        if isinstance(files, Mapping):
            lines.append(f"{shown} {_named(files.get('paths') or ())}{_completeness(files)}")
    network = end.get("network")
    if isinstance(network, Mapping):
        reached = [
            f"{place.get('host')}:{place.get('port')} ({place.get('bytes_out', 0)} bytes out, "
            f"{place.get('bytes_in', 0)} in, {place.get('decision', '?')})"
            for place in network.get("destinations") or ()
        ]
        lines.append(f"reached {_named(reached)}{_completeness(network)}")
    processes = end.get("processes")
    if isinstance(processes, Mapping):
        peak = processes.get("peak")
        lines.append(f"at most {peak} process{'' if peak == 1 else 'es'} at a time{_completeness(processes)}")
    for effect in end.get("side_effects", ())[:_MOST_NAMES]:
        meta = effect.get("meta") or {}
        lines.append(f"{effect.get('kind')} {' '.join(f'{name}={value}' for name, value in meta.items())}")
    return lines


def _used(end: Members) -> str:
    parts = [f"{name} {amount}" for name, amount in end["budget_used"].items() if amount]
    if end.get("memory_used_bytes"):
        parts.append(f"memory {int(end['memory_used_bytes']) / 1048576:.1f} MiB")
    meter = f" (measured by {end['meter']})" if end.get("meter") else ""
    return ", ".join(parts) + meter


def _named(names: Sequence[Any]) -> str:
    shown = ", ".join(map(str, names[:_MOST_NAMES]))
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return (shown or "nothing") + more


def _completeness(told: Members) -> str:
    return "" if told.get("complete") else " (what was seen; there may be more)"


def _file(told: Members) -> str:
    return f"{told.get('path')}: {told.get('size')} bytes sha256:{told.get('sha256')}"


def _digest(digest: Any) -> str:
    if not isinstance(digest, Mapping):
        return "unknown"
    try:
        shown = base64.b64decode(str(digest.get("b64", "")), validate=True).hex()
    except (binascii.Error, ValueError):
        shown = "damaged"
    return f"{digest.get('size')} bytes {digest.get('algo')}:{shown}"


_PARTS: Final[Sequence[tuple[str, Callable[[str, Members, Members], Sequence[str]]]]] = (
    ("execution", lambda exec_id, begin, end: [f"{exec_id}  {_ending(begin, end)}"]),
    ("evidence", lambda _, begin, end: [str(begin.get("envelope_id", end.get("envelope_id", "")))]),
    ("when", lambda _, begin, end: [_when(begin, end)]),
    ("who", lambda _, begin, __: [", ".join(f"{shown} {begin[name]}" for name, shown in _WHO if name in begin)]),
    ("what", lambda _, begin, __: _what(begin)),
    ("on the word", lambda _, begin, __: _word(begin)),
    ("under", lambda _, begin, __: _law(begin)),
    ("refused by", lambda _, __, end: _refusal(end) if end.get("type") == "decision.denied" else []),
    ("limits", lambda _, begin, __: [_limits(begin["limits"])] if "limits" in begin else []),
    ("isolation", lambda _, begin, end: _isolation(begin, end) if "layers" in end else []),
    ("gave back", lambda _, __, end: _outputs(end) if end.keys() & {"stdout", "outputs_digest"} else []),
    ("effects", lambda _, __, end: _effects(end)),
    ("used", lambda _, __, end: [_used(end)] if "budget_used" in end else []),
)
