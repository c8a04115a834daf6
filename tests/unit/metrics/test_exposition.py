"""What a scraper reads is what was counted: parsed by Prometheus' own client, under both sets of names."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from ringfence.metrics import families
from ringfence.metrics.exposition import openmetrics_text, prometheus_text
from ringfence.metrics.recorder import Recorder, from_records
from ringfence.metrics.series import NONE

READERS = [(prometheus_text, read_prometheus), (openmetrics_text, read_openmetrics)]


def samples(text: str, read: Any = read_prometheus) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in read(text):
        for sample in family.samples:
            place = (sample.name, frozenset(sample.labels.items()))
            assert place not in found, "a series is there twice"
            found[place] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]


def total(text: str, name: str) -> float:
    return sum(number for (sample, _), number in samples(text).items() if sample == name)


def test_one_execution_is_seen_under_both_names_with_all_labels(made: Any) -> None:
    text = prometheus_text(from_records([made.begin(), made.end()]))
    labels = {"tool": "code_run", "domain": "code", "safety": "high", "side_effect": "process", "tenant": "local"}
    assert value(text, "sandbox_executions_total", **labels, language="python", status="ok") == 1
    assert value(text, "sandbox_exec_total", **labels) == 1


def test_one_denial_is_seen_under_both_names_and_is_no_execution(made: Any) -> None:
    text = prometheus_text(from_records([made.denied()]))
    code = "SANDBOX.CAPABILITY_BLOCKED"
    assert value(text, "sandbox_policy_violations_total", tool="code_run", reason="blocked", code=code) == 1
    assert value(text, "sandbox_denied_total", code=code) == 1
    assert total(text, "sandbox_executions_total") == 0


def test_a_run_that_was_stopped_by_a_rule_is_an_execution_and_a_denial(made: Any) -> None:
    text = prometheus_text(
        from_records([made.begin(), made.end(status="denied", error_code="SANDBOX.CAPABILITY_BLOCKED", reason="host")])
    )
    assert total(text, "sandbox_executions_total") == total(text, "sandbox_policy_violations_total") == 1
    assert total(text, "sandbox_errors_total") == 0


def test_an_error_is_counted_by_its_code_and_by_whether_to_try_again(made: Any) -> None:
    failed = made.end(status="error", outcome="error", error_code="PROVIDER.UNAVAILABLE", retryable=True)
    text = prometheus_text(from_records([made.begin(), failed]))
    assert value(text, "sandbox_errors_total", code="PROVIDER.UNAVAILABLE", retryable="true") == 1


def test_an_orphan_and_a_refused_isolation_have_counters_of_their_own(made: Any) -> None:
    orphan = made.end(status="error", error_code="TOOL.EXECUTION_FAILED", reason="orphaned")
    refused = made.end("ex-2", status="error", error_code="PROVIDER.UNAVAILABLE", reason="isolation_unavailable")
    text = prometheus_text(from_records([made.begin(), orphan, made.begin("ex-2"), refused]))
    assert value(text, "sandbox_orphans_total") == 1
    assert value(text, "sandbox_isolation_refused_total") == 1


def test_the_duration_is_one_histogram_in_seconds_and_in_milliseconds(made: Any) -> None:
    text = prometheus_text(from_records([made.begin(), made.end(duration_us=5_123)]))
    seconds = {"tool": "code_run", "domain": "code"}
    assert value(text, "sandbox_execution_duration_seconds_sum", **seconds) == 0.005123
    assert value(text, "sandbox_execution_duration_seconds_bucket", **seconds, le="0.005") == 0
    assert value(text, "sandbox_execution_duration_seconds_bucket", **seconds, le="0.01") == 1
    assert value(text, "sandbox_latency_ms_sum", domain="code") == 5.123
    assert value(text, "sandbox_latency_ms_bucket", domain="code", le="5.0") == 0
    assert value(text, "sandbox_latency_ms_bucket", domain="code", le="10.0") == 1
    assert value(text, "sandbox_latency_ms_count", domain="code") == 1


def test_a_time_on_a_bound_belongs_to_its_bucket(made: Any) -> None:
    text = prometheus_text(from_records([made.begin(), made.end(duration_us=5_000)]))
    assert value(text, "sandbox_latency_ms_bucket", domain="code", le="5.0") == 1


def test_what_was_used_is_summed(made: Any) -> None:
    large = made.end("ex-2", cpu_ms="9007199254740993", budget_used={"bytes_in": 2, "gpu_ms": 4})
    text = prometheus_text(from_records([made.begin(), made.end(), made.begin("ex-2"), large]))
    assert "\nsandbox_cpu_ms 9007199254740996\n" in text
    assert value(text, "sandbox_gpu_ms") == 4
    assert value(text, "sandbox_budget_used_bytes", direction="in") == 7
    assert value(text, "sandbox_budget_used_bytes", direction="out") == 7


def test_decision_times_are_read_from_records(made: Any) -> None:
    first = made.begin(timings={"profile_build_us": 120, "guard_validate_us": 30})
    second = made.begin("ex-2", timings={"profile_build_us": 80, "guard_validate_us": 20})
    text = prometheus_text(from_records([first, made.end(), second, made.end("ex-2")]))
    assert value(text, "sandbox_profile_build_ms_sum") == 0.2
    assert value(text, "sandbox_profile_build_ms_count") == 2
    assert value(text, "sandbox_guard_validate_ms_sum") == 0.05


def test_approvals_are_pending_until_answered_and_their_wait_is_measured() -> None:
    asked = {"type": "consent.requested", "consent": {"id": "ap-1"}, "time_ms": 1_000}
    other = {"type": "consent.requested", "consent": {"id": "ap-2"}, "time_ms": 1_000}
    answered = {"type": "consent.granted", "consent": {"id": "ap-1"}, "time_ms": 4_500}
    standing = {"type": "consent.granted", "consent": {"id": "ap-9"}, "time_ms": 4_500}
    text = prometheus_text(from_records([asked, other, answered, standing]))
    assert value(text, "sandbox_approvals_pending") == 1
    assert value(text, "sandbox_approval_wait_seconds_sum") == 3.5
    assert value(text, "sandbox_approval_wait_seconds_count") == 1


def test_a_clock_that_was_set_back_makes_no_negative_wait() -> None:
    asked = {"type": "consent.requested", "envelope_id": "ev-1", "time_ms": 9_000}
    answered = {"type": "consent.expired", "envelope_id": "ev-1", "time_ms": 4_000}
    assert value(prometheus_text(from_records([asked, answered])), "sandbox_approval_wait_seconds_sum") == 0


def test_gauges_are_read_at_every_look_so_a_gone_sandbox_has_no_series() -> None:
    there = {"sb-1": 4096, "sb-2": 8192}
    recorder = Recorder()
    recorder.watch(families.MEMORY, lambda: there)
    recorder.watch(families.CPU_OF_SANDBOX, lambda: dict.fromkeys(there, 1_500_000))
    recorder.watch(families.POOL, lambda: {"parked": 2, "busy": 1})
    recorder.watch(families.BACKLOG, lambda: {"": 12})
    recorder.checkpointed(1_763_269_201_130)
    text = prometheus_text(recorder)
    assert value(text, "sandbox_memory_usage_bytes", sandbox_id="sb-1") == 4096
    assert value(text, "sandbox_cpu_usage_seconds", sandbox_id="sb-2") == 1.5
    assert value(text, "sandbox_pool_size", status="parked") == 2
    assert value(text, "sandbox_evidence_backlog") == 12
    assert value(text, "sandbox_evidence_last_checkpoint_timestamp_seconds") == 1_763_269_201.13
    del there["sb-1"]
    assert "sb-1" not in prometheus_text(recorder)


def test_a_part_that_cannot_say_its_number_hides_no_other(made: Any) -> None:
    recorder = from_records([made.begin(), made.end()])
    recorder.watch(families.POOL, lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    text = prometheus_text(recorder)
    assert total(text, "sandbox_pool_size") == 0
    assert total(text, "sandbox_executions_total") == 1


def test_only_gauges_are_watched() -> None:
    with pytest.raises(ValueError, match="not a gauge"):
        Recorder().watch(families.ERRORS, dict)


def test_every_family_and_alias_is_announced_before_anything_happened() -> None:
    text = prometheus_text(Recorder())
    for one in (*families.FAMILIES, *families.ALIASES):
        assert f"# TYPE {one.name} " in text
    assert value(text, "sandbox_orphans_total") == 0


def test_the_older_names_can_be_switched_off(made: Any) -> None:
    text = prometheus_text(from_records([made.begin(), made.end()]), aliases=False)
    assert not any(alias.name in text for alias in families.ALIASES)
    assert total(text, "sandbox_executions_total") == 1


# `NONE` is the recorder's own word for what is not said; of an end without a beginning it makes "unknown"
TOOLS = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=90).filter(lambda name: name != NONE)


@pytest.mark.parametrize(("write", "read"), READERS)
@given(tool=TOOLS)
@settings(max_examples=60, deadline=None)
def test_no_name_breaks_out_of_its_label(write: Any, read: Any, tool: str) -> None:
    records = [
        {"type": "exec.end", "exec_id": "ex-1", "tool_name": tool, "status": "ok", "duration_us": 1},
    ]
    found = samples(write(from_records(records)), read)
    expected = {sample for sample, labels in found if ("tool", tool) in labels}
    assert "sandbox_executions_total" in expected
    assert sum(number for (name, _), number in found.items() if name == "sandbox_executions_total") == 1


def test_a_line_break_in_a_name_makes_no_metric_of_the_callers_own(made: Any) -> None:
    forged = 'x"} 1\nsandbox_orphans_total 999\n#'
    text = prometheus_text(from_records([made.denied(tool_name=forged)]))
    assert value(text, "sandbox_orphans_total") == 0
    assert text.count("\nsandbox_orphans_total ") == 1


def test_openmetrics_calls_counter_only_what_ends_in_total(made: Any) -> None:
    text = openmetrics_text(from_records([made.begin(), made.end()]))
    assert samples(text, read_openmetrics)["sandbox_cpu_ms", frozenset()] == 3
    assert text.endswith("# EOF\n")
    assert "# TYPE sandbox_cpu_ms unknown\n" in text
    assert "# TYPE sandbox_executions counter\n" in text
