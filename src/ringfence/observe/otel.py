"""Executions as spans, and the recorder's numbers as instruments, of the OpenTelemetry an application has set up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ringfence.errors import Unavailable
from ringfence.metrics.exposition import shown
from ringfence.metrics.families import FAMILIES, Family, Kind
from ringfence.metrics.recorder import Recorder
from ringfence.observe.sinks import Record

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

Attributes = Callable[[Record, Record], Mapping[str, str | int | bool]]

SCOPE: Final = "ringfence"
MOST_OPEN: Final = 16_384
_NS_PER_MS: Final = 1_000_000
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
# of a record → the name of a span's attribute; the generative AI conventions where they have a name for it
_ATTRIBUTES: Final = {
    "tool_name": "gen_ai.tool.name",
    "call_id": "gen_ai.tool.call.id",
    "conversation_id": "gen_ai.conversation.id",
    "error_code": "error.type",
    "exec_id": "ringfence.exec_id",
    "envelope_id": "ringfence.evidence_id",
    "tenant": "ringfence.tenant",
    "session_id": "ringfence.session_id",
    "outcome": "ringfence.outcome",
    "reason": "ringfence.reason",
    "language": "ringfence.language",
    "domain": "ringfence.domain",
    "isolation": "ringfence.isolation",
    "backend": "ringfence.backend",
    "policy_version_hash": "ringfence.policy_version_hash",
    "profile_hash": "ringfence.profile_hash",
    "exit_code": "process.exit.code",
}


def span_attributes(begin: Record, end: Record) -> dict[str, str | int | bool]:
    """Return what a span says of an execution: names, hashes and numbers, as in the records, and no content."""
    found: dict[str, str | int | bool] = {"gen_ai.operation.name": "execute_tool"}
    for member, name in _ATTRIBUTES.items():
        value = end.get(member, begin.get(member))
        if isinstance(value, str | int):
            found[name] = value
    return found


class OtelSink:
    """A sink that makes one real span of an execution, and counts it; where both go is the application's set-up.

    A span needs its begin: one whose begin was told before this process started is begun by its measured duration.
    """

    name = "otel"

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        attributes: Attributes = span_attributes,
    ) -> None:
        """Take the application's providers, or those that are set up for all.

        Raises:
            Unavailable: opentelemetry-api is not installed.
        """
        _require()
        from opentelemetry import trace

        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._attributes = attributes
        self._open: dict[str, Record] = {}
        self._recorder = Recorder()
        export_metrics(self._recorder, meter_provider)

    def deliver(self, record: Record, record_hash: str) -> None:
        """Count it; keep a begin, or make the span of an end or a denial."""
        self._recorder.record(record)
        kind, exec_id = record.get("type"), str(record.get("exec_id", ""))
        if kind == "exec.begin":
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[exec_id] = record
        elif kind == "exec.end":
            self._span(self._open.pop(exec_id, record), record, record_hash)
        elif kind == "decision.denied":
            self._span(record, record, record_hash)

    def deliver_note(self, note: str) -> None:
        """Pass over a checkpoint: no span can hold it."""

    def close(self) -> None:
        """Leave the provider open: it is the application's."""

    def _span(self, begin: Record, end: Record, record_hash: str) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        ended_ns = _ms(end, "finished_at_ms", "time_ms") * _NS_PER_MS
        duration_us = end.get("duration_us")
        if isinstance(duration_us, int):  # measured by a clock that nobody sets, unlike the two times
            started_ns = ended_ns - duration_us * 1_000
        else:
            started_ns = min(ended_ns, _ms(begin, "produced_at_ms", "time_ms") * _NS_PER_MS)
        span = self._tracer.start_span(
            f"execute_tool {end.get('tool_name', begin.get('tool_name', 'unknown'))}",
            context=_parent(begin.get("traceparent", end.get("traceparent"))),
            kind=SpanKind.INTERNAL,
            attributes={**self._attributes(begin, end), "ringfence.record_hash": record_hash},
            start_time=started_ns,
        )
        if end.get("status") != "ok":
            span.set_status(Status(StatusCode.ERROR, str(end.get("reason", end.get("outcome", "")))))
        span.end(ended_ns)


def export_metrics(recorder: Recorder, meter_provider: MeterProvider | None = None) -> None:
    """Make every counter and gauge of the recorder an instrument that is read whenever the application collects.

    A histogram cannot be observed from outside, so of each only the number and the sum are told, as two counters.

    Raises:
        Unavailable: opentelemetry-api is not installed.
    """
    _require()
    from opentelemetry import metrics

    meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
    for family in FAMILIES:
        name = family.name.removesuffix("_total")
        if family.kind is Kind.GAUGE:
            meter.create_observable_gauge(name, [_reader(recorder, family, None)], description=family.help)
        elif family.kind is Kind.COUNTER:
            meter.create_observable_counter(name, [_reader(recorder, family, None)], description=family.help)
        else:
            meter.create_observable_counter(
                f"{name}_count", [_reader(recorder, family, _count)], description=family.help
            )
            meter.create_observable_counter(f"{name}_sum", [_reader(recorder, family, _sum)], description=family.help)


def _reader(
    recorder: Recorder, family: Family, part: Callable[[list[int]], int] | None
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def read(options: CallbackOptions) -> Iterable[Observation]:
        del options
        (one,) = (one for one in shown(recorder, aliases=False) if one.name == family.name)
        # a number of events has no unit; sums of times and gauges are told in that of the family's name
        scale = 1 if part is _count else one.scale
        for key, cell in one.cells.items():
            value = cell if part is None else part(cell)
            yield Observation(value if scale == 1 else value / scale, dict(zip(one.labels, key, strict=True)))

    return read


def _count(cell: list[int]) -> int:
    return sum(cell[:-1])


def _sum(cell: list[int]) -> int:
    return cell[-1]


def _parent(traceparent: Any) -> Context | None:
    """Return the caller's span as the parent; a text that is none makes a span without one."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return None
    flags = TraceFlags(int(found[3], 16))
    return set_span_in_context(
        NonRecordingSpan(SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags))
    )


def _ms(record: Record, *names: str) -> int:
    return next((value for value in map(record.get, names) if isinstance(value, int)), 0)


def _require() -> None:
    try:
        import opentelemetry.metrics
        import opentelemetry.trace  # noqa: F401  both are of one package
    except ImportError:
        raise Unavailable(
            "spans and metrics by OpenTelemetry need the package opentelemetry-api, which is not installed",
            reason="extra_missing",
            fix="pip install 'ringfence[otel]'",
        ) from None
