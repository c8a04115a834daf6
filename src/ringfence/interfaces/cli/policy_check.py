"""`ringfence policy check` and `policy test`: what the guard says about an operation, with nothing carried out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ringfence import wiring
from ringfence.authority import strict_json
from ringfence.authority.levels import Decision
from ringfence.authority.local import tool_of
from ringfence.authority.manifest import Manifest, built_in_manifest
from ringfence.authority.policy import PolicySnapshot, PolicyTest
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.authority.taint import Tainted
from ringfence.clock import SystemClock
from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.guard.verdict import Verdict
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.policy import load, print_json
from ringfence.interfaces.cli.policy_explain import Call, as_the_policy_gives, gather
from ringfence.interfaces.cli.render import one_line
from ringfence.operation import CodeRun
from ringfence.operation.form import Operation, summary
from ringfence.operation.judged import read_judged

_AN_HOUR_MS = 3_600_000


def check_command(words: Sequence[str]) -> int:
    """Carry out `ringfence policy check` and return the exit code: that of the refusal, or 0."""
    parser = StrictParser(prog="ringfence policy check")
    parser.add_argument("--policy", metavar="FILE", required=True)
    parser.add_argument("--op", metavar="JSON", required=True)
    parser.add_argument("--role")
    parser.add_argument("--tool")
    parser.add_argument("--manifest", metavar="FILE")
    parser.add_argument("--grant", metavar="FILE")
    parser.add_argument("--tainted", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    options.overrides = []
    operation = read_operation(options.op)
    if options.grant is None and options.manifest is None and options.tool is None:
        options.tool = tool_of(operation)
    call = gather(options, reaching=_reaches(operation))
    if options.grant is None:
        call = replace(call, grant=replace(call.grant, expires_at=SystemClock().now_ms() + _AN_HOUR_MS))
    verdict = judge(call, operation, tainted=options.tainted)
    refusal = _refusal(verdict)
    if options.json:
        print_json(
            {
                **_fields(verdict, refusal),
                "operation": summary(operation),
                "tool": call.tool,
                "role": call.role,
                "policy_version_hash": call.policy.policy_version_hash,
                "answers": [
                    {"rule": each.rule, "decision": str(each.decision), "code": each.code, "reason": each.reason,
                     "detail": each.detail}
                    for each in verdict.answers
                ],
            }
        )  # fmt: skip
    else:
        sys.stdout.write(one_line(f"{verdict.decision}: {summary(operation)} ({verdict.risk} risk)"))
        sys.stdout.writelines(one_line(line) for line in _lines(verdict))
        sys.stdout.flush()
    return 0 if refusal is None else refusal.answer.exit_code


def run_tests(words: Sequence[str]) -> int:
    """Carry out `ringfence policy test` and return the exit code: 1 when the policy fails one of its own tests."""
    parser = StrictParser(prog="ringfence policy test")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    policy = load(options.file)
    judged = [
        (test, judge(call_of(test, policy), test.operation, tainted=test.tainted)) for test in policy.policy.tests
    ]
    failed = sum(verdict.decision is not test.expect for test, verdict in judged)
    if options.json:
        results = [
            {"name": test.name, "line": test.line, "expect": str(test.expect), **_fields(verdict, _refusal(verdict))}
            for test, verdict in judged
        ]
        print_json({"success": not failed, "file": options.file, "failed": failed, "tests": results})
    else:
        for test, verdict in judged:
            sys.stdout.writelines(one_line(line) for line in _told(options.file, test, verdict))
        sys.stdout.write(one_line(f"{options.file}: {len(judged)} tests, {failed} failed"))
        sys.stdout.flush()
    return 1 if failed else 0


def judge(call: Call, operation: Operation, *, tainted: bool = False) -> Verdict:
    """Ask the guard of every run about `operation`, at this moment."""
    profile = ProfileBuilder().build(
        call.grant, call.manifest, call.policy, tool=call.tool, role=call.role, request=call.request
    )
    now_ms = SystemClock().now_ms()
    after = Tainted("an earlier call", "somewhere", now_ms) if tainted else None
    return PolicyGuard(wiring.assess).validate(profile, operation, now_ms=now_ms, tainted=after)


def read_operation(text: str) -> Operation:
    """Read an operation as JSON.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        wanted = strict_json.read(text.encode())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"--op is not JSON: {error}",
            reason="invalid_operation",
            fix="""write it as '{"op": "fs_read", "path": "work/a"}'""",
        ) from None
    return read_judged(wanted)


def call_of(test: PolicyTest, policy: PolicySnapshot) -> Call:
    """Return the call of a policy's own test, in which nobody but the policy takes anything away."""
    view = policy.view(test.tool, test.role)
    reaching = _reaches(test.operation)
    manifest = built_in_manifest(view.tool, view.capabilities, reaching=reaching) or Manifest(
        view.tool, capabilities=view.capabilities
    )
    grant = replace(as_the_policy_gives(view), expires_at=SystemClock().now_ms() + _AN_HOUR_MS)
    return Call(view.tool, test.role, policy, manifest, None, grant, "")


def _reaches(operation: Operation) -> bool:
    return isinstance(operation, CodeRun) and bool(operation.domains)


def _refusal(verdict: Verdict) -> RingfenceError | None:
    try:
        verdict.require_allowed()
    except RingfenceError as error:
        return error
    return None


def _fields(verdict: Verdict, refusal: RingfenceError | None) -> dict[str, Any]:
    return {
        "decision": str(verdict.decision),
        "risk": str(verdict.risk),
        "code": None if refusal is None else refusal.code,
        "reason": None if refusal is None else refusal.reason,
        "error": None if refusal is None else str(refusal),
    }


def _lines(verdict: Verdict) -> Iterator[str]:
    for answer in verdict.answers:
        why = "" if answer.decision is Decision.ALLOW else f"  {answer.code} {answer.reason}: {answer.detail}"
        yield f"  {answer.rule:<12} {answer.decision}{why}"


def _told(file: str, test: PolicyTest, verdict: Verdict) -> Iterator[str]:
    if verdict.decision is test.expect:
        yield f"ok      {test.name}"
        return
    yield f"FAILED  {test.name} ({file}:{test.line}): expected {test.expect}, the guard says {verdict.decision}"
    yield from _lines(verdict)
