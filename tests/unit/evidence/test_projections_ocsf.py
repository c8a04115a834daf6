"""OCSF events hold against a table of what OCSF 1.7.0 defines, and findings against a library of its classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from py_ocsf_models.events.findings.detection_finding import DetectionFinding  # type: ignore[import-untyped]
from tests.unit.evidence.told import OTHER_TYPES, RUNS, SECRETS, begin, end, record

from ringfence.errors import InvalidRequest
from ringfence.evidence.projections.ocsf import ocsf_events

# What the published schema of OCSF 1.7.0 says about the classes and objects used here: names, types, what is required.
OCSF = json.loads(Path(__file__).with_name("ocsf_1_7_0.json").read_text())
NUMBERS = {"integer_t", "long_t", "timestamp_t", "port_t"}


def faults(value: dict[str, Any], definition: dict[str, Any], where: str) -> list[str]:
    """List what the schema would object to."""
    found = [f"{where}.{name} is missing" for name in definition["required"] if name not in value]
    choice = definition.get("at_least_one")
    if choice and not set(choice) & value.keys():
        found.append(f"{where} has none of {choice}")
    for name, item in value.items():
        kind = definition["attributes"].get(name)
        if kind is None:
            found.append(f"{where}.{name} is unknown")
            continue
        allowed = definition.get("enums", {}).get(name)
        if allowed and str(item) not in allowed:
            found.append(f"{where}.{name} cannot be {item}")
        if kind.startswith("["):
            for each in item:
                found += of_type(each, kind[1:-1], f"{where}.{name}")
        else:
            found += of_type(item, kind, f"{where}.{name}")
    return found


def of_type(item: object, kind: str, where: str) -> list[str]:
    if kind == "object":
        return [] if isinstance(item, dict) else [f"{where} is no object"]
    if kind in OCSF["primitive"]:
        base = OCSF["primitive"][kind]
        wanted = bool if base == "boolean_t" else int if base in NUMBERS else str
        return [] if type(item) is wanted else [f"{where} is no {kind}"]
    assert isinstance(item, dict), where
    return faults(item, OCSF["objects"][kind], where)


def checked(*records: dict[str, Any] | None) -> tuple[dict[str, Any], ...]:
    events = ocsf_events(*records, version="1.2.3")  # type: ignore[arg-type]
    for event in events:
        uid = event["class_uid"]
        assert faults(event, OCSF["classes"][str(uid)], str(uid)) == []
        assert event["type_uid"] == uid * 100 + event["activity_id"]
        assert event["category_uid"] == uid // 1000
        assert event["metadata"]["version"] == "1.7.0"
    return events


def activities(events: tuple[dict[str, Any], ...]) -> list[tuple[int, str]]:
    return [
        (
            event["class_uid"],
            OCSF["classes"][str(event["class_uid"])]["enums"]["activity_id"][str(event["activity_id"])],
        )
        for event in events
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("succeeded", [(1007, "Launch"), (1007, "Terminate")]),
        ("orphaned", [(1007, "Launch"), (1007, "Terminate")]),
        ("shell", [(1007, "Launch"), (1007, "Terminate")]),
        ("file", [(1001, "Update")]),
        ("request", [(4002, "Get")]),
        ("tmp", [(6003, "Other")]),
        ("denied", [(2004, "Create")]),
        ("denied late", [(2004, "Create")]),
    ],
)
def test_an_operation_is_an_event_of_its_class(name: str, expected: list[tuple[int, str]]) -> None:
    assert activities(checked(*RUNS[name])) == expected


@pytest.mark.parametrize("name", RUNS)
def test_every_run_gives_events_that_the_schema_accepts(name: str) -> None:
    assert checked(*RUNS[name])
    assert checked(RUNS[name][0])


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_every_other_record_is_a_call_of_our_interface(kind: str) -> None:
    (event,) = checked(record(kind))
    assert (event["class_uid"], event["api"]) == (6003, {"operation": kind})


@pytest.mark.parametrize(
    ("kind", "activity"),
    [
        ("fs_read", "Read"),
        ("fs_list", "Read"),
        ("fs_stat", "Get Attributes"),
        ("fs_mkdir", "Create"),
        ("fs_delete", "Delete"),
    ],
)
def test_a_file_operation_is_the_activity_it_is(kind: str, activity: str) -> None:
    assert activities(checked(begin(op={"kind": kind, "path": "work/a"}), end())) == [(1001, activity)]


def test_the_end_of_a_process_has_its_exit_code_and_how_it_failed() -> None:
    _, failed = checked(*RUNS["failed"])
    assert (failed["exit_code"], failed["status_id"], failed["status_code"]) == (7, 2, "TOOL.EXECUTION_FAILED")


def test_a_denial_is_a_finding_that_another_library_reads() -> None:
    (event,) = checked(*RUNS["denied"])
    finding = DetectionFinding.model_validate(event)
    assert finding.finding_info.uid == "ev-77"
    assert finding.finding_info.title == "code_run denied: tool_denied"
    assert (finding.severity_id.name, finding.status_code) == ("High", "POLICY.DENY_TOOL")
    assert (event["action_id"], event["disposition_id"]) == (2, 2)


def test_an_address_is_shown_without_user_query_and_fragment() -> None:
    (event,) = checked(*RUNS["request"])
    assert event["http_request"]["url"] == {
        "url_string": "https://a.example:8443/path",
        "hostname": "a.example",
        "port": 8443,
    }


@pytest.mark.parametrize("url", ["", "https://[::1", "nonsense", "https://"])
def test_an_address_that_cannot_be_read_is_unknown(url: str) -> None:
    (event,) = checked(begin(op={"kind": "net_http", "method": "BREW", "url": url}, capability=""), end())
    assert event["http_request"]["url"] == {"url_string": "unknown"}
    assert event["activity_id"] == 99


def test_an_end_alone_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        ocsf_events(end(), version="1")


@pytest.mark.parametrize("name", RUNS)
def test_no_event_holds_a_secret(name: str) -> None:
    text = json.dumps(ocsf_events(*RUNS[name], version="1"))
    assert [secret for secret in SECRETS if secret in text] == []
