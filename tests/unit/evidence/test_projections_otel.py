"""The span of an execution is what OpenTelemetry's own protocol buffers and conventions expect, without content."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes
from tests.unit.evidence.told import RUNS, SECRETS, TRACEPARENT, begin, end

from ringfence.errors import InvalidRequest
from ringfence.evidence.projections.otel import otlp_json, span_of


def parsed(body: dict[str, Any]) -> ExportTraceServiceRequest:
    """Read OTLP/JSON with the protocol's own classes; it writes ids in hex where protobuf's JSON has base64."""
    body = json.loads(json.dumps(body))
    for resource in body["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(body, ExportTraceServiceRequest())


def sent(name: str) -> WireSpan:
    return parsed(otlp_json([span_of(*RUNS[name])], version="1.2.3")).resource_spans[0].scope_spans[0].spans[0]


def attributes(span: WireSpan) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in span.attributes}


@pytest.mark.parametrize("name", RUNS)
def test_the_protocols_own_classes_read_every_span(name: str) -> None:
    span = sent(name)
    told = attributes(span)
    assert span.name == f"execute_tool {RUNS[name][0]['tool_name']}"
    assert (len(span.trace_id), len(span.span_id)) == (16, 8)
    assert span.kind == WireSpan.SPAN_KIND_INTERNAL
    assert span.start_time_unix_nano <= span.end_time_unix_nano
    assert (
        told[gen_ai_attributes.GEN_AI_OPERATION_NAME] == gen_ai_attributes.GenAiOperationNameValues.EXECUTE_TOOL.value
    )
    assert told[gen_ai_attributes.GEN_AI_TOOL_NAME] == RUNS[name][0]["tool_name"]
    assert told[gen_ai_attributes.GEN_AI_TOOL_CALL_ID] == "call-1"
    assert told[gen_ai_attributes.GEN_AI_AGENT_ID] == "agent_456"
    assert told[gen_ai_attributes.GEN_AI_CONVERSATION_ID] == "conv-1"


@pytest.mark.parametrize("name", RUNS)
def test_only_what_did_not_succeed_has_an_error(name: str) -> None:
    span = sent(name)
    has_error = span.status.code == Status.STATUS_CODE_ERROR
    assert has_error == (error_attributes.ERROR_TYPE in attributes(span))
    assert has_error == (attributes(span)["ringfence.outcome"] != "succeeded")


def test_a_span_is_the_child_of_the_callers() -> None:
    span = sent("timed_out")
    _, trace_id, parent, _ = TRACEPARENT.split("-")
    assert span.trace_id.hex() == trace_id
    assert span.parent_span_id.hex() == parent
    assert attributes(span)["error.type"] == "LLM.TIMEOUT"


def test_without_a_traceparent_the_ids_follow_from_the_envelope() -> None:
    first, again = span_of(begin(), end()), span_of(begin(), end())
    other = span_of(begin(envelope_id="ev-other"), end(envelope_id="ev-other"))
    assert (first.trace_id, first.span_id) == (again.trace_id, again.span_id)
    assert first.trace_id != other.trace_id
    assert first.parent_span_id is None


@pytest.mark.parametrize(
    "traceparent",
    [
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "nonsense",
        17,
    ],
)
def test_a_traceparent_that_is_none_counts_as_none(traceparent: object) -> None:
    assert span_of(begin(traceparent=traceparent), end()) == span_of(begin(), end())


def test_the_end_follows_from_the_measured_time_even_when_the_clock_went_back() -> None:
    span = span_of(begin(), end(finished_at_ms=1))
    assert span.end_ns - span.start_ns == 1_234_567_000


def test_what_has_not_ended_has_no_span() -> None:
    with pytest.raises(InvalidRequest):
        span_of(begin())


@pytest.mark.parametrize("name", RUNS)
def test_no_span_has_arguments_results_or_secrets(name: str) -> None:
    told = attributes(sent(name))
    assert not {"gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "process.command_args"} & told.keys()
    text = json.dumps(otlp_json([span_of(*RUNS[name])], version="1"))
    assert [secret for secret in (*SECRETS, "[12 bytes]", "work/") if secret in text] == []
