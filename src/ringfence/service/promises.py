"""What is written of a promise: who asked for what, so that it can be run later, and how it ended where nothing ran."""

from __future__ import annotations

import json
from typing import Any

from ringfence.authority.caller import Caller
from ringfence.errors import Denied, RingfenceError
from ringfence.evidence.projections.exec_row import COLUMNS
from ringfence.outcome import Status
from ringfence.service import exec_views
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import ExecForm, canonical_body, read_exec
from ringfence.service.exec_store import Promised
from ringfence.service.exec_views import View


def write_request(who: Principal, form: ExecForm) -> str:
    """Return who asks for what, as `read_request` reads it."""
    caller = {
        "tenant": who.caller.tenant,
        "subject_id": who.caller.subject_id,
        "access": str(who.access),
        "role": who.role,
    }
    names = {"request_id": form.correlation.request_id, "traceparent": form.correlation.traceparent}
    return json.dumps({"who": {**caller, "key_id": who.key_id}, "names": names, "body": canonical_body(form.body)})


def read_request(promised: Promised) -> tuple[Principal, ExecForm]:
    """Return who asked for what; what another release wrote may not be readable.

    Raises:
        ValueError: It is no JSON.
        KeyError: Something is not there.
        TypeError: Something is of another type.
        RingfenceError: It is nothing that could be run.
    """
    form: Any = json.loads(promised.request or "")
    who = form["who"]
    principal = Principal(
        Caller(who["tenant"], who["subject_id"]), Access(who["access"]), who["key_id"], role=who.get("role")
    )
    asked = read_exec(json.loads(form["body"]), **form["names"])
    if asked.under_grant:
        # the token was kept nowhere, and without it the run could do more than its caller may
        raise Denied("the grant that it was to run under is not kept over a restart", reason="no_grant")
    return principal, asked


def ending_of(error: RingfenceError) -> str:
    """Return how an execution ended that was refused."""
    return json.dumps({"problem": exec_views.problem_form(error)})


def cancelled_ending() -> str:
    """Return how an execution ended that was cancelled before it began."""
    return json.dumps({"status": str(Status.CANCELLED)})


def error_in(promised: Promised) -> RingfenceError | None:
    """Return the refusal that a promise ended with, if it did."""
    if promised.ending is None:
        return None
    form: Any = json.loads(promised.ending)
    return exec_views.error_of(form.get("problem"))


def view_of(promised: Promised) -> View:
    """Return what can be said of an execution of which the journal knows nothing."""
    row: View = dict.fromkeys(COLUMNS)
    if not promised.is_over:
        return {**row, **exec_views.unfinished(promised.tenant, None, promised.exec_id, Status.QUEUED)}
    error = error_in(promised)
    told = exec_views.never_began(promised.exec_id, exec_views.status_of(error), error)
    return {**row, **exec_views.finished(promised.tenant, None, told)}
