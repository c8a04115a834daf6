"""Who is told what, as written in a configuration and in the environment."""

from __future__ import annotations

from typing import Any

import pytest

from ringfence.errors import InvalidRequest
from ringfence.observe.settings import ObserveSettings, Only, SinkKind, read_settings, with_environment

HOOK = "https://hooks.example/T0/secret-part"


def test_nothing_written_means_on_and_nobody_is_told() -> None:
    assert read_settings({}) == ObserveSettings(observe=True, sinks=(), checkpoints=())


def test_every_kind_of_sink_is_read() -> None:
    settings = read_settings(
        {
            "observe": True,
            "sinks": [
                {"kind": "webhook", "url": HOOK, "only": "violations", "timeout_ms": 900},
                {"kind": "file", "path": "/var/log/events.jsonl", "max_bytes": 10_000, "keep": 2},
                {"kind": "stdout"},
                {"kind": "otlp", "url": "http://127.0.0.1:4318/v1/traces"},
            ],
            "checkpoints": [{"kind": "stdout"}],
        }
    )
    assert [sink.kind for sink in settings.active_sinks] == [
        SinkKind.WEBHOOK,
        SinkKind.FILE,
        SinkKind.STDOUT,
        SinkKind.OTLP,
    ]
    assert settings.sinks[0].only is Only.VIOLATIONS
    assert settings.sinks[0].timeout_ms == 900
    assert [sink.kind for sink in settings.active_checkpoints] == [SinkKind.STDOUT]


def test_off_means_nobody_is_told_whatever_is_named() -> None:
    written = {"observe": False, "sinks": [{"kind": "stdout"}], "checkpoints": [{"kind": "stdout"}]}
    settings = read_settings(written)
    assert settings.sinks
    assert settings.active_sinks == settings.active_checkpoints == ()


def test_the_environment_switches_and_adds() -> None:
    settings = with_environment(
        read_settings({"sinks": [{"kind": "stdout"}]}),
        {"RINGFENCE_WEBHOOK": HOOK, "RINGFENCE_CHECKPOINT_COPIES": f"stdout, file:/var/cp.txt,{HOOK}"},
    )
    assert [(sink.kind, sink.only) for sink in settings.sinks] == [
        (SinkKind.STDOUT, Only.ALL),
        (SinkKind.WEBHOOK, Only.VIOLATIONS),
    ]
    assert [sink.kind for sink in settings.checkpoints] == [SinkKind.STDOUT, SinkKind.FILE, SinkKind.WEBHOOK]
    off = with_environment(settings, {"RINGFENCE_OBSERVE": "OFF"})
    assert off.active_sinks == off.active_checkpoints == ()
    assert with_environment(off, {"RINGFENCE_OBSERVE": "on"}).active_sinks == settings.sinks
    assert with_environment(settings, {}) == settings


def test_a_sink_that_is_named_twice_is_told_once() -> None:
    settings = with_environment(
        read_settings({"sinks": [{"kind": "webhook", "url": HOOK}]}), {"RINGFENCE_WEBHOOK": HOOK}
    )
    assert [sink.only for sink in settings.sinks] == [Only.ALL]


def test_the_name_of_a_sink_does_not_hold_the_secret_part_of_its_url() -> None:
    (sink,) = read_settings({"sinks": [{"kind": "webhook", "url": HOOK}]}).sinks
    assert "secret-part" not in sink.name
    assert "hooks.example" in sink.name


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ([], "observe must be a mapping"),
        ({"observe": "yes"}, "observe must be true or false"),
        ({"sink": []}, "observe has no setting 'sink'"),
        ({"sinks": {}}, "sinks must be a list"),
        ({"sinks": ["stdout"]}, r"sinks\[0\] must be a mapping"),
        ({"sinks": [{}]}, r"sinks\[0\].kind must be one of file, stdout, webhook, otlp"),
        ({"sinks": [{"kind": ["file"]}]}, r"sinks\[0\].kind must be one of"),
        ({"sinks": [{"kind": "file"}]}, r"sinks\[0\].path must be an absolute path"),
        ({"sinks": [{"kind": "file", "path": "a/b"}]}, r"sinks\[0\].path must be an absolute path"),
        ({"sinks": [{"kind": "stdout", "path": "/a"}]}, r"sinks\[0\].path has no meaning for a sink of kind 'stdout'"),
        ({"sinks": [{"kind": "stdout", "only": "errors"}]}, r"sinks\[0\].only must be one of all, violations"),
        ({"sinks": [{"kind": "webhook"}]}, r"sinks\[0\].url is missing"),
        ({"sinks": [{"kind": "webhook", "url": "http://example.com/"}]}, r"sinks\[0\].url must begin with https"),
        ({"sinks": [{"kind": "webhook", "url": "ftp://example.com/"}]}, r"sinks\[0\].url must begin with https"),
        ({"sinks": [{"kind": "webhook", "url": "http://127.0.0.1.evil.example/"}]}, "must begin with https"),
        ({"sinks": [{"kind": "webhook", "url": "https://me:pw@example.com/"}]}, "must not hold a name or a password"),
        ({"sinks": [{"kind": "webhook", "url": "https://a.example/#x"}]}, "must not hold a fragment"),
        ({"sinks": [{"kind": "webhook", "url": "https://a.example/\r\nX: y"}]}, "is not a URL"),
        ({"sinks": [{"kind": "webhook", "url": "https://a.example:port/"}]}, "is not a URL"),
        ({"sinks": [{"kind": "webhook", "url": "https:///x"}]}, "is not a URL"),
        ({"sinks": [{"kind": "webhook", "url": HOOK, "timeout_ms": 0}]}, "must be a whole number from 1 to 60000"),
        ({"sinks": [{"kind": "webhook", "url": HOOK, "timeout_ms": True}]}, "must be a whole number"),
        ({"sinks": [{"kind": "file", "path": "/a", "keep": 0}]}, r"sinks\[0\].keep must be a whole number"),
        ({"checkpoints": [{"kind": "otlp", "url": HOOK}]}, r"checkpoints\[0\].kind cannot be 'otlp' here"),
        ({"checkpoints": [{"kind": "stdout", "only": "violations"}]}, "has no meaning for checkpoints"),
        ({"sinks": [{"kind": "file", "path": f"/{n}"} for n in range(17)]}, "sinks must be at most 16"),
    ],
)
def test_a_mistake_is_named_with_its_place(written: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read_settings(written)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RINGFENCE_OBSERVE": "maybe"}, "RINGFENCE_OBSERVE must be on or off"),
        ({"RINGFENCE_WEBHOOK": "http://example.com"}, "RINGFENCE_WEBHOOK must begin with https"),
        ({"RINGFENCE_CHECKPOINT_COPIES": "printer"}, "RINGFENCE_CHECKPOINT_COPIES must list stdout"),
        ({"RINGFENCE_CHECKPOINT_COPIES": "file:cp"}, "must be an absolute path"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(environment: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        with_environment(ObserveSettings(), environment)
