"""What a record says of effects: bounded, escaped, honest about what nobody saw."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.evidence.effects import MOST_NAME_CHARACTERS, MOST_NAMES, harmless_text, observed, unobserved
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsDelete, FsList, FsRead, FsWrite, NetHttp, ProcExec
from ringfence.outcome import (
    Artifact,
    BrokerOutcome,
    Digest,
    Effect,
    ExecutionResult,
    FileChanges,
    Layers,
    SandboxType,
    Status,
)

RUN = CodeRun(Language.PYTHON, "pass")
BOXED = Layers(namespaces=("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"))
QUIET = ExecutionResult(Status.SUCCEEDED, exit_code=0, isolation=BOXED, tasks_peak=1)


def is_canonical(value: Any) -> bool:
    """Whether a record may hold it: no float, no null, no lone surrogate, no number a reader would round."""
    match value:
        case bool():
            return True
        case int():
            return abs(value) <= 2**53
        case str():
            return value.isprintable()
        case list():
            return all(map(is_canonical, value))
        case dict():
            return all(key.isascii() and is_canonical(each) for key, each in value.items())
        case _:
            return False


def test_an_ordinary_run_has_exactly_the_members_of_the_record() -> None:
    seen = observed(RUN, replace(QUIET, memory_peak_bytes=9, cpu_ms=3))
    assert sorted(seen) == [
        "artifacts", "cpu_ms", "files_read", "files_written", "memory_used_bytes", "network", "outputs_digest",
        "processes", "side_effects", "stderr", "stdout",
    ]  # fmt: skip
    assert is_canonical(seen)
    assert seen["files_written"] == {"paths": [], "complete": True}
    assert seen["files_read"] == {"paths": [], "complete": False}
    assert seen["processes"] == {"peak": 1, "complete": True}


def test_what_nobody_measured_is_absent() -> None:
    seen = observed(RUN, replace(QUIET, tasks_peak=None))
    assert "memory_used_bytes" not in seen
    assert seen["processes"] == {"complete": False}


def test_the_digest_of_truncated_output_is_of_what_was_kept() -> None:
    seen = observed(RUN, replace(QUIET, stdout_raw=b"kept", stdout_bytes=1000, stdout_truncated=True))
    assert seen["stdout"] == {"digest": Digest.of(b"kept").to_dict(), "bytes": 1000, "truncated": True}
    assert seen["stderr"] == {"digest": Digest.of(b"").to_dict(), "bytes": 0, "truncated": False}


def test_all_outputs_together_have_one_digest() -> None:
    def digest(**changes: Any) -> Any:
        return observed(RUN, replace(QUIET, **changes))["outputs_digest"]

    artifact = Artifact("a", 1, hashlib.sha256(b"x").hexdigest())
    several = [
        digest(), digest(stdout_raw=b"x"), digest(stderr_raw=b"x"), digest(artifacts=(artifact,)),
        digest(artifacts=(replace(artifact, path="b"),)),
    ]  # fmt: skip
    assert len({each["b64"] for each in several}) == len(several)
    assert [each["size"] for each in several] == [0, 1, 1, 1, 1]
    assert several[0] == Digest.of(b"").to_dict()


@pytest.mark.parametrize(
    ("changes", "complete"),
    [
        ({}, True),
        ({"isolation": Layers()}, False),
        ({"sandbox_type": SandboxType.DOCKER}, True),
        ({"sandbox_type": SandboxType.DOCKER, "isolation": Layers()}, False),
        ({"sandbox_type": SandboxType.AIO}, False),
        ({"sandbox_type": SandboxType.SUBPROCESS, "isolation": Layers()}, False),
    ],
)
def test_only_a_box_seen_without_a_route_is_known_to_have_reached_nobody(
    changes: dict[str, Any], complete: bool
) -> None:
    assert observed(RUN, replace(QUIET, **changes))["network"] == {"destinations": [], "complete": complete}


def test_a_program_is_known_to_have_read_nothing_in_particular() -> None:
    assert observed(ProcExec("ls"), QUIET)["files_read"] == {"paths": [], "complete": False}


def test_changes_that_a_session_refused_are_said_not_to_be_kept() -> None:
    changed = replace(QUIET, files_written=("a",), changes=FileChanges(sizes=(7,), deleted=("b",), kept=False))
    assert observed(RUN, changed)["side_effects"] == [
        {"kind": "write", "meta": {"path": "work/a", "bytes": 7, "kept": False}},
        {"kind": "write", "meta": {"path": "work/b", "deleted": True, "kept": False}},
    ]


def test_a_flood_of_names_is_cut_and_counted_everywhere() -> None:
    names = tuple(f"{number:05}" for number in range(10_000))
    artifacts = tuple(Artifact(name, 1, "0" * 64) for name in names)
    run = CodeRun(Language.PYTHON, "", inputs=dict.fromkeys(names, b""))
    lost = tuple((name, "artifact_bytes") for name in names)
    changes = FileChanges(sizes=(1,) * 10_000, deleted=names, uncollected=lost)
    seen = observed(run, replace(QUIET, files_written=names, artifacts=artifacts, changes=changes))
    assert len(seen["files_written"]["paths"]) == len(seen["artifacts"]) == len(seen["side_effects"]) == MOST_NAMES
    assert seen["files_written"]["left_out"] == 30_000 - MOST_NAMES
    assert (seen["artifacts_left_out"], seen["side_effects_left_out"]) == (10_000 - MOST_NAMES, 40_000 - MOST_NAMES)
    assert seen["files_read"]["left_out"] == 10_000 - MOST_NAMES
    assert not seen["files_written"]["complete"]
    assert len(json.dumps(seen)) < 200_000


def test_long_names_that_begin_alike_still_differ() -> None:
    first, second = harmless_text("x" * 4096 + "1"), harmless_text("x" * 4096 + "2")
    assert first != second
    assert len(first) == len(second) == MOST_NAME_CHARACTERS + len("…sha256:") + 64


def test_a_file_of_holes_larger_than_json_numbers_is_a_decimal_string() -> None:
    result = replace(QUIET, files_written=("a",), changes=FileChanges(sizes=(2**62,)))
    assert observed(RUN, result)["side_effects"][0]["meta"]["bytes"] == str(2**62)


@given(st.text(st.characters(), max_size=40))
def test_no_name_reaches_a_record_unescaped_and_none_is_lost(name: str) -> None:
    shown = harmless_text(name)
    assert shown.isprintable()
    assert "\\" not in shown
    raw = name.encode("utf-8", "surrogatepass")
    if not any("\ud800" <= character <= "\udfff" for character in name):
        assert unquote_to_bytes(shown) == raw


@given(st.lists(st.text(st.characters(), min_size=1, max_size=30), max_size=5), st.binary(max_size=50))
def test_whatever_a_guest_does_the_record_stays_canonical(names: list[str], output: bytes) -> None:
    artifacts = tuple(Artifact(name, len(name), "0" * 64) for name in names)
    changes = FileChanges(deleted=tuple(names), uncollected=tuple((name, "symlink") for name in names))
    run = CodeRun(Language.PYTHON, "", files=dict.fromkeys(names, b""))
    result = replace(
        QUIET, stdout_raw=output, files_written=tuple(names), artifacts=artifacts, changes=changes, stderr_raw=output
    )
    assert is_canonical(observed(run, result))


def test_a_brokered_read_and_write_are_exact() -> None:
    digest = Digest.of(b"abc").to_dict()
    read = BrokerOutcome(
        "fs_read", {"digest": digest}, effects=(Effect("read", {"path": "/workspace/inputs/x", "bytes": 3}),)
    )
    write = BrokerOutcome(
        "fs_write", {"digest": digest}, effects=(Effect("write", {"path": "/workspace/work/a.txt", "bytes": 3}),)
    )
    seen = observed(FsRead("inputs/x"), read)
    assert seen["files_read"] == {"paths": ["inputs/x"], "complete": True}
    assert seen["files_written"] == {"paths": [], "complete": True}
    assert seen["outputs_digest"] == digest
    seen = observed(FsWrite("work/a.txt"), write)
    assert seen["files_written"] == {"paths": ["work/a.txt"], "complete": True}
    assert seen["side_effects"] == [{"kind": "write", "meta": {"path": "work/a.txt", "bytes": 3}}]
    assert is_canonical(seen)


def test_a_deletion_is_an_effect_and_no_written_file() -> None:
    effect = Effect("write", {"path": "/workspace/work/a", "deleted": "file"})
    outcome = BrokerOutcome("fs_delete", {"path": "/workspace/work/a"}, effects=(effect,))
    seen = observed(FsDelete("work/a"), outcome)
    assert seen["files_written"]["paths"] == []
    assert seen["side_effects"] == [{"kind": "write", "meta": {"path": "work/a", "deleted": "file"}}]


def test_the_workspace_itself_has_a_name() -> None:
    outcome = BrokerOutcome("fs_list", {}, effects=(Effect("read", {"path": "/workspace", "entries": 3}),))
    assert observed(FsList("/workspace"), outcome)["files_read"]["paths"] == ["."]


def test_a_brokered_request_names_its_destination() -> None:
    meta: dict[str, str | int] = {
        "host": "a.example",
        "port": 443,
        "method": "GET",
        "bytes_in": 10,
        "bytes_out": 2,
        "decision": "allow",
    }
    seen = observed(NetHttp("GET", "https://a.example/"), BrokerOutcome("net_http", effects=(Effect("network", meta),)))
    assert seen["network"] == {"destinations": [meta], "complete": True}


def test_of_an_execution_whose_end_nobody_saw_nothing_is_complete() -> None:
    seen = unobserved()
    assert is_canonical(seen)
    assert [value["complete"] for value in seen.values() if isinstance(value, dict)] == [False] * 4


def test_the_digest_of_nothing_is_right() -> None:
    nothing = base64.b64encode(hashlib.sha256(b"").digest()).decode()
    assert observed(RUN, QUIET)["stdout"]["digest"]["b64"] == nothing
