"""What a bundle states, as an in-toto Statement: which runs, the records that prove them, and what it leaves out.

Whatever follows from the records (the subjects, the counts, the runs that are open, the documents that are missing) is
computed when a statement is written and computed again when it is read, so that it cannot say anything else.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.evidence.note import Checkpoint, VerifierKey, read_note
from ringfence.evidence.sealing import canonical_record, read_record, record_hash

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "urn:ringfence:evidence:1"
MOST_RECORDS: Final = 10_000
MOST_LOGS: Final = 256
MOST_PROOF_HASHES: Final = 64

# Counted before anything is parsed: small texts that would become very many objects are refused at the door.
_MOST_CONTAINERS: Final = 1_000_000
_MOST_ITEMS: Final = 2_000_000


@dataclass(frozen=True, slots=True)
class ProvenRecord:
    """A record with its audit path in the tree of its log's checkpoint."""

    log_id: str
    seq: int
    text: str
    proof: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """Records of which only the hashes were left when the bundle was made; both ends are meant."""

    log_id: str
    first_seq: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Content:
    """Everything that is not computed from something else."""

    records: tuple[ProvenRecord, ...]
    notes: Mapping[str, str]
    """The signed checkpoint of each log."""
    keys: tuple[VerifierKey, ...]
    """The keys that signed the checkpoints."""
    signer: VerifierKey
    documents: Mapping[str, str]
    """Policies, grants, manifests and requests by the digest that the records name them by."""
    selection: Mapping[str, str]
    """What was asked for: field and value; nothing means every run."""
    pruned: tuple[Pruned, ...]
    tool_version: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with what its records and checkpoints say; no hash and no signature in it is verified yet."""

    content: Content
    members: tuple[Mapping[str, Any], ...]
    hashes: tuple[bytes, ...]
    checkpoints: Mapping[str, Checkpoint]
    payload: bytes


def write_statement(content: Content) -> Statement:
    """Return the statement of a content, with its one text.

    Raises:
        InvalidRequest: A record or a checkpoint is not in its canonical form, or there is too much.
    """
    if len(content.records) > MOST_RECORDS or len(content.notes) > MOST_LOGS:
        raise InvalidRequest(
            f"a bundle holds at most {MOST_RECORDS} records of {MOST_LOGS} logs, this one {len(content.records)}",
            reason="bundle_too_large",
            fix="select fewer runs, or export the whole log",
        )
    members = tuple(read_record(record.text) for record in content.records)
    hashes = tuple(record_hash(record.text) for record in content.records)
    checkpoints = {log_id: Checkpoint.parse(read_note(note)[0]) for log_id, note in content.notes.items()}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(members, hashes),
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "v": 1,
            "tool": {"name": "ringfence", "version": content.tool_version},
            "created_ms": content.created_ms,
            "signer": content.signer.text(),
            "keys": [key.text() for key in content.keys],
            "checkpoints": [{"log_id": log_id, "note": note} for log_id, note in content.notes.items()],
            "records": [
                {"log_id": one.log_id, "seq": one.seq, "text": one.text, "proof": [node.hex() for node in one.proof]}
                for one in content.records
            ],
            "documents": dict(content.documents),
            "completeness": _completeness(content, members, checkpoints),
        },
    }
    return Statement(content, members, hashes, checkpoints, canonical_record(statement))


def read_statement(payload: bytes) -> Statement:
    """Return the statement that has this text.

    Raises:
        InvalidRequest: No statement has, byte for byte, this text.
    """
    if (
        payload.count(b"[") + payload.count(b"{") > _MOST_CONTAINERS
        or payload.count(b",") + payload.count(b":") > _MOST_ITEMS
    ):
        raise _damaged("the statement holds too many values")
    try:
        parsed = json.loads(payload.decode())
    except (ValueError, RecursionError):
        raise _damaged("the statement is not JSON in UTF-8") from None
    statement = write_statement(_content(parsed))
    # One comparison finds every member that is unknown, missing, repeated, of another kind or in another order, every
    # other spelling of a text or a number, and everything computed that was changed.
    if statement.payload != payload:
        raise _damaged("the statement does not say what its records say, or not in its canonical form")
    return statement


def ordered(content: Content) -> Content:
    """Return the content in the order in which it is written."""
    return Content(
        records=tuple(sorted(content.records, key=lambda record: (record.log_id, record.seq))),
        notes=dict(sorted(content.notes.items())),
        keys=tuple(sorted(set(content.keys), key=VerifierKey.text)),
        signer=content.signer,
        documents=content.documents,
        selection=content.selection,
        pruned=tuple(sorted(content.pruned, key=lambda gap: (gap.log_id, gap.first_seq))),
        tool_version=content.tool_version,
        created_ms=content.created_ms,
    )


def _subjects(members: Iterable[Mapping[str, Any]], hashes: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return what the statement is about: each record by its envelope, each artifact by its execution and path."""
    subjects: list[dict[str, Any]] = []
    for told, digest in zip(members, hashes, strict=True):
        envelope = f"{_text(told, 'envelope_id')}/{_text(told, 'type')}/{_text(told, 'log_id')}"
        subjects.append({"name": envelope, "digest": {"sha256": digest.hex()}})
        for artifact in _list(told.get("artifacts", [])):
            path, sha256 = _text(artifact, "path"), _text(artifact, "sha256")
            name = f"{_text(told, 'exec_id')}/artifacts/{path}"
            subjects.append({"name": name, "digest": {"sha256": sha256}})
    return subjects


def _completeness(
    content: Content, members: tuple[Mapping[str, Any], ...], checkpoints: Mapping[str, Checkpoint]
) -> dict[str, Any]:
    """Return what was selected and how much was not; the number left out follows from the signed size of the log."""
    included = Counter(record.log_id for record in content.records)
    pruned = Counter[str]()
    for gap in content.pruned:
        pruned[gap.log_id] += gap.last_seq - gap.first_seq + 1
    logs = [
        {
            "log_id": log_id,
            "size": checkpoint.size,
            "included": included[log_id],
            "pruned": pruned[log_id],
            "left_out": checkpoint.size - included[log_id] - pruned[log_id],
        }
        for log_id, checkpoint in checkpoints.items()
    ]
    begun = {_text(told, "envelope_id") for told in members if told.get("type") == "exec.begin"}
    ended = {_text(told, "envelope_id") for told in members if told.get("type") == "exec.end"}
    named = {digest for told in members for digest in _documents_of(told)}
    if not content.documents.keys() <= named:
        raise _damaged("there is a document that no record names")
    return {
        "selection": dict(content.selection),
        "logs": logs,
        "pruned": [
            {"log_id": gap.log_id, "first_seq": gap.first_seq, "last_seq": gap.last_seq} for gap in content.pruned
        ],
        "without_end": sorted(begun - ended),
        "without_begin": sorted(ended - begun),
        "documents_missing": sorted(named - content.documents.keys()),
    }


def _documents_of(told: Mapping[str, Any]) -> list[str]:
    documents = told.get("documents", {})
    if not isinstance(documents, dict) or not all(isinstance(digest, str) for digest in documents.values()):
        raise _damaged("a record names its documents in another form")
    return list(documents.values())


def _content(parsed: Any) -> Content:
    """Return the content of a parsed statement; members that are computed, and unknown ones, are not looked at."""
    match parsed:
        case {
            "predicate": {
                "tool": {"version": str(tool_version)},
                "created_ms": int(created_ms),
                "signer": str(signer),
                "keys": list(keys),
                "checkpoints": list(checkpoints),
                "records": list(records),
                "documents": dict(documents),
                "completeness": {"selection": dict(selection), "pruned": list(pruned)},
            }
        }:
            return Content(
                records=tuple(map(_record, records)),
                notes={_text(one, "log_id"): _text(one, "note") for one in checkpoints},
                keys=tuple(VerifierKey.parse(_as_text(key)) for key in keys),
                signer=VerifierKey.parse(signer),
                documents={_as_text(digest): _as_text(body) for digest, body in documents.items()},
                selection={_as_text(name): _as_text(value) for name, value in selection.items()},
                pruned=tuple(
                    Pruned(_text(one, "log_id"), _number(one, "first_seq"), _number(one, "last_seq")) for one in pruned
                ),
                tool_version=tool_version,
                created_ms=int(created_ms),
            )
        case _:
            raise _damaged("this is not a statement of ours")


def _record(parsed: Any) -> ProvenRecord:
    match parsed:
        case {"log_id": str(log_id), "seq": int(seq), "text": str(text), "proof": list(proof)}:
            if len(proof) > MOST_PROOF_HASHES:
                raise _damaged("a proof is longer than that of any tree")
            return ProvenRecord(log_id, int(seq), text, tuple(map(_node, proof)))
        case _:
            raise _damaged("a record of the statement cannot be read")


def _node(parsed: Any) -> bytes:
    try:
        return bytes.fromhex(_as_text(parsed))
    except ValueError:
        raise _damaged("a proof cannot be read") from None


def _text(parsed: Any, name: str) -> str:
    return _as_text(parsed.get(name) if isinstance(parsed, Mapping) else None)


def _number(parsed: Any, name: str) -> int:
    value = parsed.get(name) if isinstance(parsed, Mapping) else None
    if type(value) is not int:
        raise _damaged(f"{name} is not a number")
    return value


def _as_text(parsed: Any) -> str:
    if not isinstance(parsed, str):
        raise _damaged("a text is missing from the statement")
    return parsed


def _list(parsed: Any) -> list[Any]:
    if not isinstance(parsed, list):
        raise _damaged("a list is missing from a record")
    return parsed


def _damaged(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="bundle_damaged")
