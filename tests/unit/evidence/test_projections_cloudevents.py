"""Every record is a CloudEvent that the CloudEvents project's own library reads."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from tests.unit.evidence.told import OTHER_TYPES, TRACEPARENT, begin, denial, end, record

from ringfence.capability.canonical import canonical
from ringfence.errors import InvalidRequest
from ringfence.evidence.projections.cloudevents import MEDIA_TYPE, cloud_event

RECORDS = {told["type"]: told for told in (begin(), end(), denial(), *map(record, OTHER_TYPES))}


def hash_of(told: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(told)).hexdigest()


def read(event: dict[str, Any]) -> CloudEvent:
    message = HTTPMessage({"content-type": MEDIA_TYPE}, json.dumps(event).encode())
    parsed = from_http_event(message, JSONFormat())
    assert isinstance(parsed, CloudEvent)
    return parsed


@pytest.mark.parametrize("kind", RECORDS)
def test_an_independent_library_reads_every_type_of_record(kind: str) -> None:
    told = RECORDS[kind]
    event = read(cloud_event(told, hash_of(told)))
    assert event.get_specversion() == "1.0"
    assert event.get_id() == f"lg-1a2b3c/{told['seq']}"
    assert event.get_source() == "urn:ringfence:log:lg-1a2b3c"
    assert event.get_type() == f"ringfence.evidence.{kind}"
    assert event.get_subject() == "ex-5"
    assert event.get_datacontenttype() == "application/json"
    assert event.get_dataschema() == "urn:ringfence:evidence:record:1"
    moment = event.get_time()
    assert moment is not None
    assert round(moment.timestamp() * 1000) == told["time_ms"]


def test_the_data_are_the_record_and_its_hash() -> None:
    told = begin()
    data = read(cloud_event(told, hash_of(told))).get_data()
    assert isinstance(data, dict)
    shown = data.pop("hash")
    assert data == told
    assert shown == hash_of(data)


def test_records_of_one_execution_have_different_ids() -> None:
    ids = {cloud_event(told, hash_of(told))["id"] for told in (begin(), end(), begin(log_id="lg-other"))}
    assert len(ids) == 3


def test_a_well_formed_traceparent_is_an_extension_and_another_is_left_in_the_data() -> None:
    told = begin(traceparent=TRACEPARENT)
    assert read(cloud_event(told, hash_of(told))).get_extension("traceparent") == TRACEPARENT
    wrong = begin(traceparent="nonsense")
    event = cloud_event(wrong, hash_of(wrong))
    assert "traceparent" not in event
    assert event["data"]["traceparent"] == "nonsense"


def test_a_hash_in_another_form_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        cloud_event(begin(), "sha256:abc")


def test_a_moment_outside_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no moment"):
        cloud_event(begin(time_ms=2**53), "0" * 64)
