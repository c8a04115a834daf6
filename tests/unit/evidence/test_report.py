"""What a period of evidence comes to, in memory that does not grow with it, and what of a policy it never needed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.evidence.records import NOW, Archive

from ringfence.authority.policy_reader import load_policy
from ringfence.capability.canonical import canonical
from ringfence.evidence.counting import Top
from ringfence.evidence.replay import Agreement, Judged, Rederived
from ringfence.evidence.report import MOST_SHOWN, report
from ringfence.evidence.tally import MOST_EXAMPLES, tally
from ringfence.evidence.unused import ENOUGH, unused_rules
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsRead, NetHttp, ProcExec
from ringfence.operation.form import Operation

HOUR = 3_600_000


@settings(max_examples=100)
@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 40))
def test_a_count_is_never_too_small_and_says_how_much_too_large(keys: list[int], capacity: int) -> None:
    top: Top[int] = Top(capacity)
    for key in keys:
        top.add(key)
    true = Counter(keys)
    for row in top.most(1000):
        assert row.count - row.over <= true[row.key] <= row.count
    assert len(top) <= 2 * capacity
    if len(true) <= capacity:
        assert {row.key: row.count for row in top.most(1000)} == true


def test_a_key_that_is_frequent_survives_any_number_of_invented_ones() -> None:
    top: Top[str] = Top(10)
    for number in range(5000):
        top.add(f"invented-{number}")
        if number % 3 == 0:
            top.add("often")
    assert top.most(1)[0].key == "often"
    assert len(top) <= 20


def begin(number: int, **members: Any) -> dict[str, Any]:
    return {"type": "exec.begin", "time_ms": NOW, "exec_id": f"ex-{number}", "tool_name": "code_run"} | members


def end(number: int, **members: Any) -> dict[str, Any]:
    return {
        "type": "exec.end", "time_ms": NOW, "exec_id": f"ex-{number}", "tool_name": "code_run", "outcome": "succeeded",
        "duration_us": 1000 * number, "budget_used": {"calls": 1, "cpu_ms": 3, "bytes_out": str(2**60)},
        "memory_used_bytes": number,
    } | members  # fmt: skip


def denied(**members: Any) -> dict[str, Any]:
    return {
        "type": "decision.denied", "time_ms": NOW, "tool_name": "file_read", "subject_id": "ann", "rule": "deny_lists",
        "error_code": "SANDBOX.CAPABILITY_BLOCKED", "reason": "blacklist",
    } | members  # fmt: skip


def test_a_period_is_summed_up() -> None:
    records = [
        *(begin(number, subject_id="ann" if number % 2 else "bob", time_ms=NOW + number * HOUR) for number in range(4)),
        *(end(number) for number in range(3)),
        end(3, outcome="error", reason="orphaned", error_code="TOOL.EXECUTION_FAILED"),
        denied(),
        denied(),
        {"type": "policy.loaded", "time_ms": NOW},
        begin(99, time_ms=NOW - 1),
        begin(98, time_ms=NOW + 10 * HOUR),
    ]
    found = report(records, NOW, NOW + 10 * HOUR)
    assert (found.records, found.calls, found.denied, found.orphaned) == (11, 6, 2, 1)
    assert {row.key: row.count for row in found.by_tool} == {"code_run": 4, "file_read": 2}
    assert {row.key: row.count for row in found.by_outcome} == {"succeeded": 3, "denied": 2, "error": 1}
    assert [(row.key, row.count) for row in found.by_denial] == [
        ("SANDBOX.CAPABILITY_BLOCKED blacklist (deny_lists)", 2)
    ]
    assert {row.key: row.count for row in found.subjects} == {"ann": 4, "bob": 2}
    assert (found.busiest_hours[0].key, found.busiest_hours[0].count) == ("2023-11-14T22:00Z", 3)
    assert [run.exec_id for run in found.slowest] == ["ex-3", "ex-2", "ex-1", "ex-0"]
    assert (found.spent["calls"], found.spent["cpu_ms"], found.spent["bytes_out"]) == (4, 12, 4 * 2**60)
    assert found.memory_peak_bytes == 3
    text = "\n".join(found.lines())
    assert "6 calls, 2 of them refused; 1 runs that nobody saw end" in text
    assert "         4  code_run" in text
    found.to_json()


def test_a_period_of_nothing_is_a_report_too() -> None:
    found = report([])
    assert found.calls == 0
    assert len(list(found.lines())) == 2


@settings(max_examples=100)
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                ["type", "time_ms", "tool_name", "outcome", "budget_used", "duration_us", "subject_id", "reason"]
            ),
            st.sampled_from(["exec.begin", "exec.end", "decision.denied", "x" * 500, NOW, -1, 10**18, True, [], {}]),
        ),
        max_size=8,
    )
)
def test_no_record_however_odd_breaks_a_report(records: list[dict[str, Any]]) -> None:
    found = report(records)
    list(found.lines())


def test_a_report_shows_the_most_frequent_of_a_million_invented_names_in_bounded_memory() -> None:
    found = report(begin(0, tool_name=f"t{number % 9973}", subject_id=f"s{number}") for number in range(30_000))
    assert len(found.subjects) == len(found.by_tool) == MOST_SHOWN
    assert all(row.count - row.over <= 4 for row in found.by_tool)


# --- what a policy did not need ---

POLICY = load_policy(
    b"""policies:
  default: {env_allow: [LANG, APP_*], supported_languages: [python, bash]}
  tools:
    http_request: {allowed_domains: ["*.example.com", other.org], network_access: true}
    file_delete: {max_execution_time: 1s}
    file_read: {allowed_paths: [/workspace], denied_paths: ["**/.env", "**/*.key"]}
    shell_exec: {denied_commands: [sudo, curl]}
    proc_exec: {allowed_commands: [git, make]}
  agent_roles:
    analyst: {tools: [file_read, code_run, shell_exec, http_request, file_write]}
    idle: {tools: [file_read]}
rules:
  - {id: no-push, decision: deny, command: [git, push]}
  - {id: no-dd, decision: deny, command: [dd]}
  - {id: no-drafts, decision: deny, path: /workspace/drafts}
  - {id: no-tor, decision: deny, domain: "*.onion"}
"""
)


def used(*operations: tuple[Operation, str | None]) -> dict[str, list[str]]:
    archive = Archive()
    usage = unused_rules(POLICY, [archive.record(operation, POLICY, role=role) for operation, role in operations])
    assert usage.decisions == len(operations)
    found: dict[str, list[str]] = {}
    for finding in usage.findings:
        found.setdefault(finding.rule, []).append(f"{finding.path}: {finding.message}")
    return found


def test_what_no_call_was_about_is_named_with_its_place() -> None:
    found = used(
        (FsRead("work/.env"), "analyst"),
        (CodeRun(Language.PYTHON, "1", env={"APP_A": "x"}), "analyst"),
        (CodeRun(Language.BASH, "git push; sudo x"), "analyst"),
        (ProcExec("git", ("x",)), None),
    )
    assert found["unused_rule"] == [f"rule {name}: was about no call" for name in ("no-dd", "no-drafts", "no-tor")]
    assert found["unused_role"] == ["role idle: made no call"]
    assert found["unused_tool"] == [
        "tool http_request: no call of http_request",
        "tool file_delete: no call of file_delete",
        "role analyst.tools: may use 5 tools, and never used http_request, file_write",
    ]
    assert set(found["unused_entry"]) == {
        "default.env_allow: LANG was about no call",
        "tool file_read.denied_paths: /workspace/**/*.key was about no call",
        "tool shell_exec.denied_commands: curl was about no call",
        "tool proc_exec.allowed_commands: make was about no call",
    }
    assert "overbroad_entry" not in found


def test_what_gave_far_more_than_was_used_is_named_once_there_is_enough_evidence() -> None:
    reads = [(FsRead(f"work/data/{number}"), None) for number in range(ENOUGH)]
    visits = [(NetHttp("GET", f"https://{name}.example.com/"), None) for name in "ab" * ENOUGH]
    assert used(*reads, *visits)["overbroad_entry"] == [
        "tool http_request.allowed_domains: *.example.com was used for a.example.com, b.example.com only",
        "tool file_read.allowed_paths: /workspace was used below /workspace/work/data only",
    ]
    assert "overbroad_entry" not in used(*reads[1:], *visits[:3])
    everywhere = [(NetHttp("GET", f"https://h{number}.example.com/"), None) for number in range(ENOUGH)]
    assert "overbroad_entry" not in used(*everywhere, *reads[:3])


def test_a_role_that_uses_few_of_its_many_tools_is_too_broad() -> None:
    found = used((FsRead("work/a"), "analyst"), (CodeRun(Language.PYTHON, "1"), "analyst"))
    assert found["overbroad_role"] == [
        "role analyst.tools: may use 5 tools, and never used shell_exec, http_request, file_write"
    ]


def test_no_evidence_accuses_nothing_and_what_cannot_be_told_is_said() -> None:
    assert unused_rules(POLICY, []).findings == ()
    usage = unused_rules(POLICY, [{"type": "exec.begin", "tool_name": "file_read", "op": {"kind": "fs_format"}}])
    assert usage.not_told == 1
    assert next(usage.lines()) == "1 decisions looked at, 1 of them about operations that cannot be told"


# --- the sum of a replay ---


def test_a_replay_is_summed_up_by_what_changes() -> None:
    allow, deny = Judged("allow"), Judged("deny", "deny_lists", "C", "blacklist")
    found = [
        *(Rederived(Agreement.DIFFERS, allow, deny, "deny_lists", "", f"ex-{n}", "file_read") for n in range(14)),
        *(Rederived(Agreement.DIFFERS, deny, allow, "deny_lists", "", f"ex-{n}", "code_run") for n in range(2)),
        *(Rederived(Agreement.SAME, allow, allow) for _ in range(3)),
        Rederived(Agreement.CANNOT_TELL, allow, None, why="no content"),
    ]
    summed = tally(found)
    assert (summed.total, summed.same, summed.differs, summed.cannot_tell) == (20, 3, 16, 1)
    assert [(change.count, change.then, change.now, change.tool) for change in summed.changes] == [
        (14, "allow", "deny", "file_read"),
        (2, "deny", "allow", "code_run"),
    ]
    assert len(summed.changes[0].examples) == MOST_EXAMPLES
    assert summed.open_questions == (("no content", 1),)
    canonical(summed.to_json())
    assert str(summed.changes[0]).startswith("14 past calls of file_read would now be denied by deny_lists (ex-0,")
