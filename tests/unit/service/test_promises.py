"""What a service promised before it was killed is run as it was asked for, or not at all."""

from __future__ import annotations

import pytest

from ringfence.authority.caller import Caller
from ringfence.errors import Denied
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import GRANT_MEMBER, read_exec
from ringfence.service.exec_store import Promised
from ringfence.service.promises import read_request, write_request

WHO = Principal(Caller("local", "anna"), Access.AGENT, "k1")
BODY = {"ephemeral": True, "exec": {"kind": "python", "code": "1"}}


def test_what_was_promised_under_a_grant_is_not_run_without_it() -> None:
    assert read_request(Promised("ex_1", "local", None, "", 0, write_request(WHO, read_exec(BODY))))[0] == WHO
    asked = write_request(WHO, read_exec({**BODY, GRANT_MEMBER: "sha256:of its token"}))
    with pytest.raises(Denied) as refused:
        read_request(Promised("ex_2", "local", None, "", 0, asked))
    assert refused.value.reason == "no_grant"
