"""Errors as problems: every code and reason of the table, and nothing of the host for whoever cannot mend it."""

from __future__ import annotations

import json

import pytest

from ringfence.errors import Denied, InternalError, InvalidRequest, QuotaExceeded, RingfenceError, Unavailable
from ringfence.errors.table import TABLE, answer
from ringfence.interfaces.http.problem import MEDIA_TYPE, problem_of, response


@pytest.mark.parametrize("code", TABLE)
def test_every_reason_has_the_status_that_the_table_gives_it(code: str) -> None:
    for reason in TABLE[code].reasons:
        error = RingfenceError("so", reason=reason)
        error.code = code
        told = problem_of(error)
        assert (told["status"], told["code"], told["reason"]) == (answer(code, reason).http_status, code, reason)
        got = response(error)
        assert (got.status_code, got.media_type) == (told["status"], MEDIA_TYPE)
        assert json.loads(bytes(got.body)) == told


def test_our_own_failure_says_nothing_of_our_insides() -> None:
    told = problem_of(InternalError("/root/.ringfence/secret", fix="chmod /root", path="/root"))
    assert "/root" not in json.dumps(told)
    assert "/root" in json.dumps(problem_of(InternalError("/root/x"), show_fix=True))


def test_a_fix_on_the_host_is_for_those_who_run_it() -> None:
    error = Unavailable("no room", reason="disk_full", fix="rm -r /srv/old")
    assert "fix" not in problem_of(error)
    assert problem_of(error, show_fix=True)["fix"] == "rm -r /srv/old"


def test_a_fix_of_the_request_is_for_everybody() -> None:
    assert problem_of(InvalidRequest("wrong", fix="write it so"))["fix"] == "write it so"


def test_who_may_come_back_is_told_when() -> None:
    busy = response(QuotaExceeded("full", reason="concurrency", retry_after_seconds=7))
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "7")
    assert response(Denied("no", reason="no_key")).headers["www-authenticate"] == "Bearer"


def test_a_text_that_is_no_unicode_is_answered_all_the_same() -> None:
    assert json.loads(bytes(response(InvalidRequest("\ud800")).body))["detail"] == "?"
