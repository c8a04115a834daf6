"""From the settings to observers at work; what an event looks like is the caller's to say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from ringfence.observe.lane import Position, Reread
from ringfence.observe.observers import Observers
from ringfence.observe.settings import ObserveSettings, SinkKind, SinkSettings
from ringfence.observe.sinks import Encode, EncodedSink, FileLines, Record, Sink, Stdout, Transport
from ringfence.observe.webhook import Webhook

Event = Callable[[Record, str], Mapping[str, Any] | None]  # a record and its hash in hex → what is told of it, as JSON
# A begin, unless it was told before this process began, and its end; or a denial alone → an OTLP request.
Span = Callable[[Record | None, Record | None], Mapping[str, Any] | None]

MOST_OPEN: Final = 16_384


def open_observers(
    settings: ObserveSettings,
    *,
    event: Event,
    span: Span | None = None,
    positions: Mapping[str, Position] | None = None,
    reread: Reread | None = None,
) -> Observers:
    """Return the observers that the settings name; nothing is opened or sent before the first record.

    Raises:
        ValueError: A sink wants spans, and there is no `span` to make them.
        Unavailable: A sink is the application's OpenTelemetry, and opentelemetry-api is not installed.
    """
    return Observers(
        [_sink(sink, event, span) for sink in settings.active_sinks],
        [_sink(sink, event, span) for sink in settings.active_checkpoints],
        positions=positions,
        reread=reread,
    )


class PairedSpans:
    """Keeps a begin until its end comes, and makes of both one span; a denied call is a span at once."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._open: dict[str, Record] = {}
        self._ended: str | None = None

    def __call__(self, record: Record, record_hash: str) -> Mapping[str, Any] | None:
        """Return what to tell a collector now, if anything."""
        del record_hash
        kind, exec_id = record.get("type"), str(record.get("exec_id", ""))
        if self._ended is not None and (kind, self._ended) != ("exec.end", exec_id):
            del self._open[self._ended]  # not before: an unready collector is told of the same end again
            self._ended = None
        if kind == "exec.begin":
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[exec_id] = record
        elif kind == "exec.end":
            self._ended = exec_id if exec_id in self._open else None
            return self._span(self._open.get(exec_id), record)
        elif kind == "decision.denied":
            return self._span(record, None)
        return None


def _sink(settings: SinkSettings, event: Event, span: Span | None) -> Sink:
    if settings.kind is SinkKind.OTEL:
        from ringfence.observe.otel import OtelSink  # not at the top: it is an extra, and most homes do not ask for it

        return OtelSink()
    if settings.kind is SinkKind.OTLP:
        if span is None:
            raise ValueError("a sink of kind 'otlp' needs a way to make spans")
        return EncodedSink(
            settings.name,
            _transport(settings),
            _json(PairedSpans(span)),
            only=settings.only,
            content_type="application/json",
        )
    return EncodedSink(settings.name, _transport(settings), _json(event), only=settings.only)


def _transport(settings: SinkSettings) -> Transport:
    if settings.kind is SinkKind.FILE:
        return FileLines(settings.path or "", max_bytes=settings.max_bytes, keep=settings.keep)
    if settings.kind is SinkKind.STDOUT:
        return Stdout()
    return Webhook(settings.url or "", timeout_ms=settings.timeout_ms)


def _json(event: Event) -> Encode:
    def encode(record: Record, record_hash: str) -> bytes | None:
        told = event(record, record_hash)
        if told is None:
            return None
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()

    return encode
