"""Somebody's agreement is a recorded fact that is there, in its time and for this very request, or nothing runs.

Nobody can be asked for it yet: what a person would have said is handed to the pipeline that every door goes through.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import said

from ringfence import Denied, SandboxManager
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsWrite, ProcExec

pytestmark = [pytest.mark.needs("native")]

CODE = CodeRun(Language.PYTHON, "print('RAN')", session_id="s")
CHANGED = CodeRun(Language.PYTHON, "print('RAN, and more')", session_id="s")
WRITE = FsWrite("work/a", b"x")
ANOTHER = FsWrite("work/a", b"y")
PROGRAM = ProcExec("true", ())
NEVER = 1 << 51
ASKING = "mode: ask\npolicies: {tools: {proc_exec: {allowed_commands: ['true']}}}\n"
CRITICAL = "policies: {tools: {code_run: {risk_level: critical}}}\n"


def for_this(operation: Any, **more: Any) -> Consent:
    named = request_hash(operation, more.pop("session_id", "s"))
    return Consent(Source.CALL, named, **{"expires_at_ms": NEVER, "approver": "ann", **more})


async def run(home: Path, policy: str, operation: Any, consent: Consent | None) -> str:
    """Return what becomes of an operation, and what its evidence says about who agreed."""
    file = home.with_name("policy.yaml")
    file.write_text(policy)
    async with SandboxManager("s", home=home, policy_file=file, pool_size=0) as manager:
        engine = manager.engine
        profile = engine.authority.profile(operation, call_id="c")
        try:
            outcome: Any = await engine.orchestrator.run(operation, profile, session_id="s", consent=consent)
        except Denied as refused:
            return refused.reason
    records = map(json.loads, said(home, "evidence", "export", "--format", "log").splitlines())
    (begun,) = (
        each for each in records if each.get("envelope_id") == outcome.evidence_id and each["type"] == "exec.begin"
    )
    return f"ran: {begun.get('consent', {}).get('source')}"


@pytest.mark.parametrize(
    ("policy", "operation", "consent", "becomes"),
    [
        # the policy's mode agrees beforehand, or nobody has
        ("mode: cowork\n", CODE, None, "ran: policy"),
        ("mode: auto\n", CODE, None, "ran: auto"),
        *((ASKING, operation, None, "consent_required") for operation in (CODE, WRITE, PROGRAM)),
        # a session's
        *((ASKING, operation, Consent(Source.SESSION), "ran: session") for operation in (CODE, WRITE, PROGRAM)),
        (ASKING, CODE, Consent(Source.SESSION, expires_at_ms=1), "consent_expired"),
        (ASKING, CODE, Consent(Source.SESSION, request_hash(CHANGED)), "consent_mismatch"),
        # a person's for one request, and for no other
        *((ASKING, operation, for_this(operation), "ran: call") for operation in (CODE, WRITE, PROGRAM)),
        (ASKING, CODE, for_this(CHANGED), "consent_mismatch"),
        (ASKING, WRITE, for_this(ANOTHER), "consent_mismatch"),
        *((ASKING, each, for_this(each, session_id="other"), "consent_mismatch") for each in (WRITE, PROGRAM)),
        (ASKING, PROGRAM, for_this(ProcExec("true", ("x",))), "consent_mismatch"),
        (ASKING, CODE, for_this(CODE, expires_at_ms=1), "consent_expired"),
        (ASKING, CODE, Consent(Source.CALL), "consent_required"),
        # what is critical takes nothing less, whatever the mode agrees to
        (CRITICAL, CODE, None, "consent_required"),
        ("mode: auto\n" + CRITICAL, CODE, None, "consent_required"),
        (CRITICAL, CODE, Consent(Source.SESSION), "consent_required"),
        (CRITICAL, CODE, for_this(CODE), "ran: call"),
        # and so does what the policy wants to be asked for every time
        (
            "approvals: [{path: '/workspace/work/**', scope: call}]\n",
            WRITE,
            Consent(Source.SESSION),
            "consent_required",
        ),
        ("approvals: [{path: '/workspace/work/**', scope: call}]\n", WRITE, for_this(WRITE), "ran: call"),
    ],
)
async def test_nothing_runs_that_nobody_agreed_to(
    policy: str, operation: Any, consent: Consent | None, becomes: str, tmp_path: Path
) -> None:
    assert await run(tmp_path / "home", policy, operation, consent) == becomes
