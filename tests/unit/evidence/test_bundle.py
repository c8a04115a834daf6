"""A bundle proves its runs without the store, and no byte of it can be changed unseen."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.signer._key import SSlibKey
from tests.unit.evidence.logs import POLICY, POLICY_DIGEST, Log, content
from tests.unit.evidence.told import RUNS, SECRETS, begin, denial, end, record

from ringfence.crypto import ed25519
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.evidence.anchors import Trust
from ringfence.evidence.bundle import Bundle, Proof, make_bundle, read_bundle
from ringfence.evidence.dsse import key_id_of, seal_envelope
from ringfence.evidence.note import VerifierKey, sign_note
from ringfence.evidence.sealing import canonical_record
from ringfence.evidence.statement import Pruned, write_statement
from ringfence.journal.signer import Signer

SIGNER, FORGER, WITNESS = Signer(b"s" * 32), Signer(b"f" * 32), Signer(b"w" * 32)
VERIFY = ed25519.verify
DOCUMENTS = {"policy": POLICY_DIGEST}


def one_log() -> Log:
    return Log("lg-1", [record("log.opened"), begin(documents=DOCUMENTS), end(), denial(documents=DOCUMENTS)])


def made(**changes: Any) -> bytes:
    return make_bundle(
        content(SIGNER, one_log(), **({"documents": {POLICY_DIGEST: POLICY}} | changes)), SIGNER.sign, VERIFY
    )


def smallest() -> bytes:
    return make_bundle(content(SIGNER, Log("lg-1", [record("log.opened")])), SIGNER.sign, VERIFY)


def read(data: bytes, keys: Iterable[VerifierKey] = (), notes: Iterable[str] = ()) -> Bundle:
    return read_bundle(data, Trust(VERIFY, keys=tuple(keys), checkpoints=tuple(notes)))


def payload_of(data: bytes) -> bytes:
    return base64.b64decode(json.loads(data)["payload"])


def statement_of(data: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(payload_of(data))
    return told


def is_found(data: bytes) -> bool:
    """Tell whether a changed bundle is refused; an exception of any other kind is a failure of the test."""
    try:
        read(data, keys=[SIGNER.key])
    except RingfenceError:
        return True
    return False


FULL = made()


# --- what a bundle is ---------------------------------------------------------------------------


def test_an_independent_library_verifies_the_envelope_with_the_public_key_alone() -> None:
    data = made()
    envelope = Envelope.from_dict(json.loads(data))
    public = {"public": SIGNER.key.public.hex()}
    ours = SSlibKey(key_id_of(SIGNER.key), "ed25519", "ed25519", public)
    assert envelope.payload_type == "application/vnd.in-toto+json"
    assert list(envelope.verify([ours], 1)) == [ours.keyid]
    theirs = SSlibKey(key_id_of(SIGNER.key), "ed25519", "ed25519", {"public": FORGER.key.public.hex()})
    with pytest.raises(Exception, match="threshold"):
        envelope.verify([theirs], 1)


def test_the_statement_is_an_in_toto_statement_about_the_runs_and_their_artifacts() -> None:
    log = one_log()
    told = statement_of(made())
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "urn:ringfence:evidence:1"
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in told["subject"]}
    assert subjects["ev-77/exec.end/lg-1"] == log.sealed[2].hash.hex()
    assert subjects["ex-5/artifacts/out.csv"] == sha256(b"a,b").hexdigest()
    assert len(subjects) == 5


def test_the_key_from_outside_proves_it() -> None:
    bundle = read(made(), keys=[FORGER.key, SIGNER.key])
    assert bundle.proof is Proof.KEY
    assert bundle.is_proven
    assert [told["type"] for told in bundle.records] == ["log.opened", "exec.begin", "exec.end", "decision.denied"]


def test_a_checkpoint_from_outside_proves_the_records_and_not_the_selection() -> None:
    bundle = read(made(), notes=[WITNESS.sign_checkpoint(one_log().checkpoint())])
    assert bundle.proof is Proof.CHECKPOINT
    assert bundle.is_proven
    assert "unproven" in bundle.verdict


def test_a_checkpoint_from_outside_of_another_size_proves_the_key_that_signed_it() -> None:
    shorter = SIGNER.sign_checkpoint(Log("lg-1", [record("log.opened")]).checkpoint())
    assert read(made(), notes=[shorter]).proof is Proof.KEY


def test_without_anything_from_outside_the_signer_is_unproven() -> None:
    bundle = read(made())
    assert not bundle.is_proven
    assert bundle.verdict == "signer unproven"
    assert read(made(), keys=[FORGER.key]).proof is Proof.NONE


def test_a_checkpoint_of_another_log_or_signer_proves_nothing() -> None:
    shorter = Log("lg-1", [record("log.opened")]).checkpoint()
    other = SIGNER.sign_checkpoint(Log("lg-2", [record("log.opened")]).checkpoint())
    assert read(made(), notes=[other, WITNESS.sign_checkpoint(shorter)]).proof is Proof.NONE
    lie = sign_note(shorter.text(), SIGNER.name, SIGNER.key.public, WITNESS.sign)
    assert read(made(), notes=[lie]).proof is Proof.NONE


def test_a_witness_who_signed_a_checkpoint_too_does_not_speak_for_the_log() -> None:
    shorter = Log("lg-1", [record("log.opened")]).checkpoint()
    line = WITNESS.sign_checkpoint(shorter).removeprefix(shorter.text() + "\n")
    theirs = make_bundle(content(WITNESS, one_log()), WITNESS.sign, VERIFY)
    note = SIGNER.sign_checkpoint(shorter) + line
    assert read(theirs, notes=[note]).proof is Proof.NONE
    assert read(made(), notes=[note]).proof is Proof.KEY


def test_a_checkpoint_from_outside_with_another_root_contradicts_it() -> None:
    other = SIGNER.sign_checkpoint(replace(one_log().checkpoint(), root=bytes(32)))
    with pytest.raises(InvalidRequest) as refused:
        read(made(), keys=[SIGNER.key], notes=[other])
    assert refused.value.reason == "checkpoint_mismatch"


def test_genuine_records_under_a_statement_of_somebody_else_are_not_proven_by_the_key_alone_as_a_selection() -> None:
    stolen = content(SIGNER, one_log(), documents={POLICY_DIGEST: POLICY})
    data = make_bundle(replace(stolen, signer=FORGER.key, selection={}), FORGER.sign, VERIFY)
    assert read(data, keys=[SIGNER.key]).proof is Proof.CHECKPOINT


def test_one_run_of_many_is_proven_by_itself() -> None:
    log = Log("lg-1", [record("log.opened"), *(begin(envelope_id=f"ev-{n}") for n in range(100))])
    data = make_bundle(content(SIGNER, log, seqs=[57]), SIGNER.sign, VERIFY)
    bundle = read(data, keys=[SIGNER.key])
    assert [told["envelope_id"] for told in bundle.records] == ["ev-56"]
    assert statement_of(data)["predicate"]["completeness"]["logs"] == [
        {"log_id": "lg-1", "size": 101, "included": 1, "pruned": 0, "left_out": 100}
    ]


def test_runs_of_several_logs_go_into_one_bundle() -> None:
    logs = [Log("lg-2", [begin()]), Log("lg-1", [end()]), Log("lg-3", [record("log.opened")])]
    data = make_bundle(
        replace(content(SIGNER, *logs), records=(logs[0].proven(0), logs[1].proven(0))), SIGNER.sign, VERIFY
    )
    told = statement_of(data)["predicate"]["completeness"]
    assert read(data, keys=[SIGNER.key]).proof is Proof.KEY
    assert [log["left_out"] for log in told["logs"]] == [0, 0, 1]
    assert (told["without_end"], told["without_begin"]) == ([], [])


def test_it_says_what_it_leaves_out() -> None:
    told = statement_of(made(seqs=[1], pruned=(Pruned("lg-1", 2, 3),)))["predicate"]["completeness"]
    assert told == {
        "selection": {"session_id": "sess_abc123"},
        "logs": [{"log_id": "lg-1", "size": 4, "included": 1, "pruned": 2, "left_out": 1}],
        "pruned": [{"log_id": "lg-1", "first_seq": 2, "last_seq": 3}],
        "without_end": ["ev-77"],
        "without_begin": [],
        "documents_missing": [],
    }
    assert statement_of(made(documents={}))["predicate"]["completeness"]["documents_missing"] == [POLICY_DIGEST]


def test_a_bundle_is_the_same_in_whatever_order_its_content_came() -> None:
    ours = content(SIGNER, one_log(), Log("lg-0", [end()]), documents={POLICY_DIGEST: POLICY})
    shuffled = replace(ours, records=ours.records[::-1], notes=dict(reversed(list(ours.notes.items()))))
    assert make_bundle(ours, SIGNER.sign, VERIFY) == make_bundle(shuffled, SIGNER.sign, VERIFY)


def test_no_secret_is_in_a_bundle() -> None:
    runs = [told for name, run in RUNS.items() if name != "request" for told in run if told]
    data = make_bundle(content(SIGNER, Log("lg-1", runs)), SIGNER.sign, VERIFY)
    assert [secret for secret in SECRETS if secret.encode() in payload_of(data)] == []


# --- what is never made -------------------------------------------------------------------------


def refusals() -> Iterator[Any]:
    log, other = one_log(), Log("lg-2", [record("log.opened")])
    ours = content(SIGNER, log, documents={POLICY_DIGEST: POLICY})
    first, second, *_ = ours.records
    forged = Log("lg-1", [record("log.opened", seq=0), begin(), end(), denial()])
    yield pytest.param(replace(ours, records=(first, first), documents={}), id="a record twice")
    yield pytest.param(replace(ours, records=(replace(first, seq=1),)), id="a record at another place")
    yield pytest.param(replace(ours, records=(replace(first, log_id="lg-2"),)), id="a record of no log")
    yield pytest.param(replace(ours, records=(replace(first, text=second.text),)), id="the text of another record")
    yield pytest.param(replace(ours, records=(replace(first, text=first.text + " "),)), id="a blank in a record")
    yield pytest.param(replace(ours, records=(replace(first, proof=first.proof[1:]),)), id="a shorter proof")
    yield pytest.param(replace(ours, records=(replace(first, proof=(*first.proof, bytes(32))),)), id="a longer proof")
    yield pytest.param(replace(ours, records=(forged.proven(1),)), id="a record of another history")
    yield pytest.param(
        replace(ours, notes={"lg-1": FORGER.sign_checkpoint(log.checkpoint())}), id="a stranger's checkpoint"
    )
    yield pytest.param(
        replace(ours, notes={"lg-1": SIGNER.sign_checkpoint(other.checkpoint())}), id="another log's checkpoint"
    )
    renamed = SIGNER.sign_checkpoint(replace(log.checkpoint(), origin="ringfence/lg-2"))
    yield pytest.param(replace(ours, notes={"lg-1": renamed}), id="a checkpoint under another name")
    yield pytest.param(replace(ours, notes={}), id="no checkpoint")
    yield pytest.param(replace(ours, keys=(SIGNER.key, FORGER.key)), id="a key that signed nothing")
    yield pytest.param(replace(ours, signer=FORGER.key), id="another signer")
    yield pytest.param(replace(ours, documents={POLICY_DIGEST: POLICY + " "}), id="an altered document")
    yield pytest.param(replace(ours, documents={"sha256:" + sha256(b"").hexdigest(): ""}), id="a document nobody names")
    yield pytest.param(replace(ours, pruned=(Pruned("lg-1", 2, 2),)), id="pruned and there")
    yield pytest.param(replace(ours, records=(first,), pruned=(Pruned("lg-1", 3, 4),)), id="pruned beyond the end")
    yield pytest.param(replace(ours, records=(first,), pruned=(Pruned("lg-1", 3, 1),)), id="pruned backwards")
    yield pytest.param(
        replace(ours, records=(first,), pruned=(Pruned("lg-1", 1, 2), Pruned("lg-1", 2, 3))), id="pruned twice"
    )
    yield pytest.param(replace(ours, pruned=(Pruned("lg-9", 0, 0),)), id="pruned from no log")


@pytest.mark.parametrize("wrong", list(refusals()))
def test_a_bundle_that_could_not_be_verified_is_never_made(wrong: Any) -> None:
    with pytest.raises(InvalidRequest):
        make_bundle(wrong, SIGNER.sign, VERIFY)


@pytest.mark.parametrize("stray", [Log("lg-9", [record("log.opened")]), Log("lg-1", [record("log.opened"), end()])])
def test_a_record_that_says_it_belongs_elsewhere_is_found_although_it_is_under_the_checkpoint(stray: Log) -> None:
    log = one_log()
    log.sealed[0] = stray.sealed[-1]._replace(seq=0)
    log.head = replace(log.head, frontier=type(log.head.frontier)().extend(one.hash for one in log.sealed))
    with pytest.raises(InvalidRequest, match="belongs somewhere else"):
        make_bundle(content(SIGNER, log, seqs=[0]), SIGNER.sign, VERIFY)


def test_a_key_from_outside_does_not_stand_in_for_one_that_the_bundle_leaves_out() -> None:
    hidden = replace(content(SIGNER, one_log()), keys=())
    with pytest.raises(InvalidRequest):
        read(seal_envelope(write_statement(hidden).payload, SIGNER.key, SIGNER.sign), keys=[SIGNER.key])


def test_neighbours_that_do_not_follow_each_other_are_found_although_both_are_under_the_checkpoint() -> None:
    log = one_log()
    stray = Log("lg-1", [record("log.closed"), begin()])
    log.sealed[1] = stray.sealed[1]
    log.head = replace(log.head, frontier=type(log.head.frontier)().extend(one.hash for one in log.sealed))
    with pytest.raises(InvalidRequest, match="does not follow"):
        make_bundle(content(SIGNER, log), SIGNER.sign, VERIFY)


def test_a_bundle_with_too_many_records_is_refused_with_what_to_do() -> None:
    ours = content(SIGNER, Log("lg-1", [record("log.opened")]))
    with pytest.raises(InvalidRequest) as refused:
        make_bundle(replace(ours, records=ours.records * 10_001), SIGNER.sign, VERIFY)
    assert refused.value.reason == "bundle_too_large"
    assert refused.value.fix


# --- every change of a byte is found ------------------------------------------------------------


def changes_at(data: bytes, place: int) -> Iterator[bytes]:
    before, here, after = data[:place], data[place : place + 1], data[place + 1 :]
    yield before + bytes([here[0] ^ 1 << place % 8]) + after
    yield before + after
    yield before + here + here + after
    yield before + b" " + here + after
    yield before


def test_every_change_at_every_byte_of_a_bundle_is_found() -> None:
    data = FULL
    assert not is_found(data)
    missed = [place for place in range(len(data)) for changed in changes_at(data, place) if not is_found(changed)]
    assert missed == []
    assert all(is_found(data + more) for more in (b"\n", b" ", b"\0", data, data[-1:]))


def test_every_change_at_every_byte_of_the_statement_inside_is_found() -> None:
    data = smallest()
    payload, envelope = payload_of(data), json.loads(data)
    missed = []
    for place in range(len(payload)):
        for changed in changes_at(payload, place):
            envelope["payload"] = base64.b64encode(changed).decode()
            if changed != payload and not is_found(canonical_record(envelope)):
                missed.append(place)
    assert missed == []


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_slices_that_are_repeated_moved_removed_or_overwritten_are_found(data: st.DataObject) -> None:
    whole = FULL
    first = data.draw(st.integers(0, len(whole) - 1))
    last = data.draw(st.integers(first + 1, min(len(whole), first + 400)))
    piece, to = whole[first:last], data.draw(st.integers(0, len(whole)))
    noise = data.draw(st.binary(min_size=1, max_size=20))
    for changed in (
        whole[:to] + piece + whole[to:],
        whole[:first] + whole[last:],
        whole[:first] + noise + whole[last:],
        whole[:first] + piece[::-1] + whole[last:],
        whole[:to] + noise + whole[to:],
    ):
        assert changed == whole or is_found(changed)


def _spelled_anew(payload: str) -> str:
    """Return the same statement with its members in another order."""
    statement = json.loads(base64.b64decode(payload))
    return base64.b64encode(json.dumps(dict(reversed(statement.items()))).encode()).decode()


@pytest.mark.parametrize(
    "spelling",
    [
        lambda envelope: json.dumps(envelope).encode(),
        lambda envelope: json.dumps(envelope, indent=1).encode(),
        lambda envelope: canonical_record(envelope | {"more": 1}),
        lambda envelope: canonical_record(envelope | {"payloadType": "application/json"}),
        lambda envelope: canonical_record(envelope | {"signatures": envelope["signatures"] * 2}),
        lambda envelope: canonical_record(envelope | {"signatures": []}),
        lambda envelope: canonical_record(envelope | {"signatures": [envelope["signatures"][0] | {"keyid": "0" * 64}]}),
        lambda envelope: canonical_record(envelope | {"payload": envelope["payload"].replace("+", "-")[:-4] + "AB=="}),
        lambda envelope: canonical_record(envelope).replace(b"{", b'{"payload":"",', 1),
        lambda envelope: json.dumps(dict(reversed(envelope.items())), separators=(",", ":")).encode(),
        lambda envelope: canonical_record(envelope).replace(b'"payloadType":', b'"payloadType":"x","payloadType":'),
        lambda envelope: canonical_record(envelope).replace(b"}", b',"signatures":[]}'),
        lambda envelope: canonical_record(envelope).replace(b'"payload"', rb'"\u0070ayload"'),
        lambda envelope: canonical_record(envelope | {"payload": _spelled_anew(envelope["payload"])}),
        lambda envelope: b"\xef\xbb\xbf" + canonical_record(envelope),
        lambda envelope: canonical_record(envelope).decode().encode("utf-16"),
    ],
)
def test_another_spelling_of_the_same_envelope_is_found(spelling: Any) -> None:
    assert is_found(spelling(json.loads(FULL)))


# --- a forger with a key of their own -----------------------------------------------------------


def resigned(payload: bytes) -> bytes:
    return seal_envelope(payload, FORGER.key, FORGER.sign)


def paths(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, value in items:
        yield from paths(value, (*at, name))


def put(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = put(tree[path[0]], path[1:], value)
    return copy


FORGED = statement_of(make_bundle(replace(content(SIGNER, one_log()), signer=FORGER.key), FORGER.sign, VERIFY))
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    1,
    -1,
    2**60,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    {"a": 1},
    [None],
    "sha256:x",
)


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_whatever_a_forger_puts_anywhere_and_signs_is_refused(value: Any) -> None:
    free = {("predicate", "created_ms"), ("predicate", "tool", "version")}
    for path in paths(FORGED):
        changed = put(FORGED, path, value)
        data = resigned(json.dumps(changed, sort_keys=True, separators=(",", ":")).encode())
        try:
            bundle = read(data, keys=[SIGNER.key])
        except RingfenceError:
            continue
        assert bundle.proof is not Proof.KEY
        # only what is the signer's word may be another: the records under a trusted checkpoint never
        assert path in free or path[:3] == ("predicate", "completeness", "selection"), path
    assert read(resigned(canonical_record(FORGED)), keys=[SIGNER.key]).proof is Proof.CHECKPOINT


def test_an_invented_history_under_a_key_of_their_own_is_never_proven() -> None:
    data = make_bundle(content(FORGER, one_log()), FORGER.sign, VERIFY)
    assert read(data, keys=[SIGNER.key]).proof is Proof.NONE


def test_a_checkpoint_that_names_the_trusted_key_but_was_signed_by_another_is_found() -> None:
    note = sign_note(one_log().checkpoint().text(), SIGNER.name, SIGNER.key.public, FORGER.sign)
    with pytest.raises(InvalidRequest) as refused:
        make_bundle(content(SIGNER, one_log(), notes={"lg-1": note}), SIGNER.sign, VERIFY)
    assert refused.value.reason == "bad_signature"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b"[" + b"1000," * 2_000_000 + b"1]",
        b"[" + b"1000," * 1_000_000 + b"1]",
        b'{"predicate":' + b"9" * 100_000 + b"}",
        b"1e999999",
        b"NaN",
        b"\xff\xfe",
        b'"\\ud800"',
    ],
    ids=lambda payload: f"{payload[:12]!r}{len(payload)}",
)
def test_a_hostile_statement_is_refused_in_bounded_memory(payload: bytes) -> None:
    data = resigned(payload)
    tracemalloc.start()
    try:
        assert is_found(data)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(data) + 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_file_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(bytes(64 * 1024 * 1024 + 1))
    assert refused.value.reason == "bundle_too_large"


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    assert is_found(data)
