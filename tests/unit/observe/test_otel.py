"""An application's own OpenTelemetry is given real spans and instruments, read back from the SDK's memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from ringfence.errors import Unavailable
from ringfence.metrics import families
from ringfence.metrics.recorder import Recorder, from_records
from ringfence.observe.observers import Observers
from ringfence.observe.otel import MOST_OPEN, OtelSink, export_metrics

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def begin(**members: Any) -> dict[str, Any]:
    return {
        "type": "exec.begin",
        "log_id": "lg-1",
        "seq": 0,
        "exec_id": "ex-1",
        "envelope_id": "ev-1",
        "time_ms": 1_000,
        "produced_at_ms": 1_000,
        "tool_name": "code_run",
        "call_id": "call-1",
        "language": "python",
        "domain": "code",
        "args": ["[12 bytes]"],
        "traceparent": f"00-{TRACE}-{PARENT}-01",
        **members,
    }


def end(**members: Any) -> dict[str, Any]:
    return {
        "type": "exec.end",
        "log_id": "lg-1",
        "seq": 1,
        "exec_id": "ex-1",
        "envelope_id": "ev-1",
        "time_ms": 1_006,
        "finished_at_ms": 1_005,
        "duration_us": 4_500,
        "tool_name": "code_run",
        "status": "ok",
        "outcome": "succeeded",
        "exit_code": 0,
        **members,
    }


def spans(*records: dict[str, Any]) -> tuple[ReadableSpan, ...]:
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    observers = Observers([OtelSink(provider)])
    for record in records:
        observers.offer(record, b"\xab" * 32)
    assert observers.close(20)
    assert [state.refused for state in observers.states()] == [0]
    return memory.get_finished_spans()


def test_one_execution_is_one_span_below_the_callers_with_its_measured_time() -> None:
    (span,) = spans(begin(), end())
    assert span.name == "execute_tool code_run"
    assert span.parent is not None
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert (span.start_time, span.end_time) == (1_000_500_000, 1_005_000_000)
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "code_run",
        "gen_ai.tool.call.id": "call-1",
        "ringfence.exec_id": "ex-1",
        "ringfence.evidence_id": "ev-1",
        "ringfence.outcome": "succeeded",
        "ringfence.language": "python",
        "ringfence.domain": "code",
        "process.exit.code": 0,
        "ringfence.record_hash": "ab" * 32,
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_denial_is_a_span_that_failed() -> None:
    denied = begin(type="decision.denied", status="denied", error_code="POLICY.DENY_TOOL", reason="tool_denied")
    (span,) = spans(denied)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "tool_denied"
    assert (span.attributes or {})["error.type"] == "POLICY.DENY_TOOL"


def test_an_end_whose_begin_was_told_before_a_restart_is_still_a_span() -> None:
    (span,) = spans(end())
    assert span.parent is None
    assert (span.start_time, span.end_time) == (1_000_500_000, 1_005_000_000)


@pytest.mark.parametrize("traceparent", ["", "00-zz", f"01-{TRACE}-{PARENT}-01", 7, f"00-{TRACE}-{PARENT}-01\n"])
def test_a_parent_that_is_none_makes_a_span_without_one(traceparent: Any) -> None:
    (span,) = spans(begin(traceparent=traceparent), end(duration_us="x"))
    assert span.parent is None
    assert (span.start_time, span.end_time) == (1_000_000_000, 1_005_000_000)


def test_other_records_and_checkpoints_make_no_span() -> None:
    assert spans(begin(type="policy.loaded")) == ()
    OtelSink(TracerProvider()).deliver_note("note")


def test_begins_that_never_end_are_given_up() -> None:
    sink = OtelSink(TracerProvider())
    for number in range(MOST_OPEN + 5):
        sink.deliver(begin(exec_id=f"ex-{number}"), "")
    assert len(sink._open) == MOST_OPEN


def points(recorder: Recorder) -> dict[tuple[str, frozenset[tuple[str, Any]]], float]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export_metrics(recorder, provider)
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    return {
        (metric.name, frozenset((point.attributes or {}).items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


def test_what_a_sink_was_told_is_counted_by_the_applications_meter() -> None:
    reader = InMemoryMetricReader()
    sink = OtelSink(TracerProvider(), MeterProvider([reader]))
    for record in (begin(), end()):
        sink.deliver(record, "")
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    (executions,) = (metric for metric in metrics if metric.name == "sandbox_executions")
    assert [getattr(point, "value", None) for point in executions.data.data_points] == [1]


def test_the_recorders_numbers_are_read_as_instruments() -> None:
    recorder = from_records([begin(), end()])
    recorder.watch(families.POOL, lambda: {"parked": 2})
    found = points(recorder)
    tool = frozenset({("tool", "code_run"), ("domain", "code")})
    assert found["sandbox_execution_duration_seconds_count", tool] == 1
    assert found["sandbox_execution_duration_seconds_sum", tool] == 0.0045
    assert found["sandbox_pool_size", frozenset({("status", "parked")})] == 2
    assert found["sandbox_orphans", frozenset()] == 0
    assert sum(value for (name, _), value in found.items() if name == "sandbox_executions") == 1


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(Unavailable, match="opentelemetry-api") as caught:
        OtelSink()
    assert caught.value.reason == "extra_missing"
    assert caught.value.fix == "pip install 'ringfence[otel]'"
    with pytest.raises(Unavailable, match="opentelemetry-api"):
        export_metrics(Recorder())
