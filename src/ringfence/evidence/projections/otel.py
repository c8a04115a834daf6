"""One execution as an OpenTelemetry span of the GenAI conventions, without arguments, results or any dependency."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.evidence.projections.run import Record, Run, counted

SEMCONV_SCHEMA: Final = "https://opentelemetry.io/schemas/1.37.0"
"""The release of the semantic conventions that the attribute names are from; the GenAI part is in development there."""

SCOPE: Final = "ringfence.evidence"

_INTERNAL = 1
_ERROR = 2
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")

# From the records to the attributes. Nothing else of a record gets into a span.
_ATTRIBUTES: Final = (
    ("gen_ai.tool.name", "tool_name"),
    ("gen_ai.tool.call.id", "call_id"),
    ("gen_ai.agent.id", "subject_id"),
    ("gen_ai.conversation.id", "conversation_id"),
    ("session.id", "session_id"),
    ("ringfence.exec.id", "exec_id"),
    ("ringfence.evidence.id", "envelope_id"),
    ("ringfence.log.id", "log_id"),
    ("ringfence.tenant", "tenant"),
    ("ringfence.backend", "backend"),
    ("ringfence.isolation", "isolation"),
    ("process.exit.code", "exit_code"),
)


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span; ids are lower-case hex, as traceparent and OTLP/JSON write them."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    trace_flags: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    error: str | None
    """The finer reason of what went wrong; nothing when the execution succeeded."""


def span_of(begin: Record, end: Record | None = None) -> Span:
    """Return the span of one execution or one denial.

    The ids follow from the records alone, so that an export which is repeated says the same spans again.

    Raises:
        InvalidRequest: The records are not those of one execution, or it has not ended.
    """
    run = Run(begin, end)
    run.require_finished()
    envelope_id = str(begin["envelope_id"])
    trace_id, parent_span_id, flags = _context(begin.get("traceparent"), envelope_id)
    start_ns = run.started_ms * 1_000_000
    attributes: dict[str, str | int] = {"gen_ai.operation.name": "execute_tool"}
    for name, member in _ATTRIBUTES:
        value = run.get(member)
        if isinstance(value, str | int):
            attributes[name] = value
    attributes["ringfence.outcome"] = run.outcome
    if run.error_code is not None:
        attributes["error.type"] = run.error_code
    return Span(
        name=f"execute_tool {run.get('tool_name') or 'unknown'}",
        trace_id=trace_id,
        span_id=_derived(b"span", envelope_id, 8),
        parent_span_id=parent_span_id,
        trace_flags=flags,
        start_ns=start_ns,
        end_ns=_end_ns(run, start_ns),
        attributes=MappingProxyType(attributes),
        error=None if run.error_code is None else str(run.last.get("reason") or run.outcome),
    )


def otlp_json(spans: Iterable[Span], *, version: str, service: str = "ringfence") -> dict[str, Any]:
    """Return spans as the body of an OTLP/HTTP request in JSON; 64-bit numbers are texts there, and ids hex."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _encoded({"service.name": service, "service.version": version})},
                "scopeSpans": [
                    {
                        "scope": {"name": SCOPE, "version": version},
                        "spans": [_otlp_span(span) for span in spans],
                        "schemaUrl": SEMCONV_SCHEMA,
                    }
                ],
            }
        ]
    }


def _otlp_span(span: Span) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "flags": span.trace_flags,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _encoded(span.attributes),
        "status": {} if span.error is None else {"code": _ERROR, "message": span.error},
    }
    if span.parent_span_id is not None:
        encoded["parentSpanId"] = span.parent_span_id
    return encoded


def _encoded(attributes: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for name, value in attributes.items()
    ]


def _context(traceparent: Any, envelope_id: str) -> tuple[str, str | None, int]:
    """Return trace id, parent span id and flags; a traceparent that the W3C form forbids counts as none."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return _derived(b"trace", envelope_id, 16), None, 1
    return found[1], found[2], int(found[3], 16)


def _derived(purpose: bytes, envelope_id: str, size: int) -> str:
    return hashlib.sha256(purpose + b"\0" + envelope_id.encode()).digest()[:size].hex()


def _end_ns(run: Run, start_ns: int) -> int:
    """Return the end by the measured duration where there is one: the wall clock may have jumped meanwhile."""
    duration_us = run.get("duration_us")
    if duration_us is not None:
        return start_ns + counted(duration_us) * 1000
    return max(start_ns, (run.ended_ms or run.started_ms) * 1_000_000)
