"""`ringfence evidence show`: one execution as its two records tell it, its place in the log, and the proof of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from ringfence.interfaces.cli.evidence_desk import Read, no_such, open_desk, parser, read_place, say
from ringfence.interfaces.cli.evidence_proof import Proven, prove
from ringfence.interfaces.cli.evidence_view import told_lines

PUBLIC: Final = (
    *("envelope_id", "exec_id", "call_id", "tenant", "subject_id", "session_id", "user_id", "space_id", "task_id"),
    *("conversation_id", "turn_id", "project_id", "skill_id", "request_id", "traceparent", "tool_name", "capability"),
    *("language", "inputs_digest", "outputs_digest", "stdout", "stderr", "artifacts", "files_written", "status"),
    *("outcome", "error_code", "reason", "retryable", "exit_code", "timed_out", "killed", "killed_by", "budget_used"),
    *("duration_ms", "memory_used_bytes", "cpu_ms", "produced_at_ms", "finished_at_ms"),
)
"""What whoever made the call may see of it; the rest (grant, policy, limits, isolation) is for auditors."""


def show_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence show` and return the exit code: 3 when a record is not what was written."""
    taken = parser("show")
    taken.add_argument("id", metavar="ID")
    view = taken.add_mutually_exclusive_group()
    view.add_argument("--audit", action="store_true")
    view.add_argument("--public", action="store_true")
    options = taken.parse_args(list(words))
    desk = open_desk(options.home)
    key = desk.key
    with desk.reading() as reader:
        execution = reader.execution(options.id)
        if execution is None:
            raise no_such(options.id)
        read = [read_place(execution.begin)]
        if execution.end is not None and execution.end != execution.begin:
            read.append(read_place(execution.end))
        count = len(read)
        read += map(read_place, reader.others(execution.exec_id))
        proofs = [prove(reader, each, key) for each in read]
    if options.json:
        _print(read, proofs, count if options.public else None)
    elif options.public:
        members = _public(read[:count])
        width = max(len(name) for name in members) if members else 0
        for name, value in members.items():
            say(f"{name:<{width}}  {_shown(value)}")
    else:
        for line in told_lines(execution.exec_id, [each.members for each in read[:count]]):
            say(line)
        _show_places(read, proofs)
    sys.stdout.flush()
    return 3 if any(proof.verdict == "broken" for proof in proofs) else 0


def _public(read: Sequence[Read]) -> dict[str, Any]:
    together: dict[str, Any] = {}
    for each in read:
        together |= each.members
    return {name: together[name] for name in PUBLIC if name in together}


def _shown(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _print(read: Sequence[Read], proofs: Sequence[Proven], public: int | None) -> None:
    """Print all records with their proofs, or of the first `public` ones what whoever made the call may see."""
    from ringfence.interfaces.cli.policy import print_json

    broken = any(proof.verdict == "broken" for proof in proofs)
    if public is not None:
        print_json({"success": not broken, **_public(read[:public])})
        return
    records = [
        {
            "log_id": each.place.log_id,
            "seq": each.place.seq,
            "hash": each.place.hash.hex(),
            "integrity": each.state,
            "record": each.members,
            "proof": proof.to_json(),
        }
        for each, proof in zip(read, proofs, strict=True)
    ]
    print_json({"success": not broken, "records": records})


def _show_places(read: Sequence[Read], proofs: Sequence[Proven]) -> None:
    for each, proof in zip(read, proofs, strict=True):
        place = each.place
        kind = each.members.get("type", "record")
        say()
        say(f"{kind}  record {place.seq} of {place.log_id}, {each.state}")
        say(f"  hash   {place.hash.hex() or 'none'}")
        steps = "" if proof.proof is None else f" ({_counted(len(proof.proof.hashes), 'step')})"
        say(f"  proof  {proof.verdict}: {proof.why}{steps}")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
