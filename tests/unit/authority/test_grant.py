"""A grant can be handed on narrower, never wider, and comes back from JSON as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.authority.grant import Grant, narrowed, read_grant
from ringfence.authority.levels import RiskLevel
from ringfence.capability.budget import UNLIMITED, Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import Denials
from ringfence.capability.form import parse
from ringfence.errors import InvalidRequest
from ringfence.operation import brokered as op

amounts: Any = st.one_of(st.none(), st.just(UNLIMITED), st.integers(0, 9))
capabilities = st.frozensets(
    st.sampled_from(
        ["fs.read:/workspace", "fs.read:/workspace/inputs", "net.http:GET:a.com", "net.http:GET,POST:*.a.com"]
    )
).map(lambda texts: Capabilities(map(parse, texts)))
limits = st.dictionaries(st.sampled_from(["wall_seconds", "pids"]), st.integers(1, 9))
denials = st.frozensets(st.sampled_from([".env", "work"])).map(lambda paths: Denials(paths=paths))
grants = st.builds(
    Grant,
    tenant=st.just("t"),
    subject_id=st.just("s"),
    tool_name=st.just("web.get"),
    call_id=st.text(max_size=5).filter(str.isprintable),
    capabilities=capabilities,
    expires_at=st.integers(0, 2**50),
    budget=st.builds(Budget, calls=amounts, bytes_in=amounts),
    decision_key_fingerprint=st.just("sha256:00"),
    nonce=st.sampled_from(["", "n"]),
    limits=limits,
    denials=denials,
    safety_floor=st.sampled_from(list(RiskLevel)),
)
OPERATIONS = (op.FsRead("inputs/a"), op.FsRead("work/a"), op.NetHttp("POST", "https://x.a.com/"), op.FsRead(".env"))


@given(grants)
def test_a_grant_comes_back_from_json(grant: Grant) -> None:
    assert read_grant(grant.to_json()) == grant
    assert read_grant(grant.to_json()).digest() == grant.digest()


@given(grants, grants)
@settings(max_examples=60)
def test_whatever_it_is_attenuated_with_it_never_allows_more(grant: Grant, other: Grant) -> None:
    narrow = grant.attenuate(
        capabilities=other.capabilities,
        budget=other.budget,
        limits=other.limits,
        denials=other.denials,
        expires_at=other.expires_at,
        safety_floor=other.safety_floor,
    )
    for operation in OPERATIONS:
        allowed = [
            each.capabilities.allows(operation) and each.denials.refusal(operation) is None
            for each in (narrow, grant, other)
        ]
        assert allowed[0] == (allowed[1] and allowed[2])
    assert narrow.expires_at <= grant.expires_at
    assert narrow.budget.exceeding(grant.budget) == ()
    assert all(narrow.limits[name] <= most for name, most in grant.limits.items())
    assert narrow.safety_floor >= grant.safety_floor
    assert (narrow.call_id, narrow.tenant, narrow.subject_id, narrow.nonce) == (
        grant.call_id, grant.tenant, grant.subject_id, grant.nonce,
    )  # fmt: skip


@given(grants)
def test_attenuating_with_nothing_changes_nothing(grant: Grant) -> None:
    assert grant.attenuate() == grant


def test_its_last_millisecond_is_over_when_it_is_reached() -> None:
    grant = read_grant(FORM)
    assert not grant.is_expired(99)
    assert grant.is_expired(100)


FORM: dict[str, Any] = {
    "tenant": "t",
    "subject_id": "s",
    "tool_name": "web.get",
    "call_id": "c",
    "capabilities": ["TmpUse"],
    "expires_at": 100,
    "budget": {"calls": 1},
    "decision_key_fingerprint": "f",
}


@pytest.mark.parametrize("field", list(FORM))
def test_each_of_the_eight_fields_must_be_there(field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{field} is missing"):
        read_grant({name: value for name, value in FORM.items() if name != field})


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "all"},
        {"tenant": None},
        {"expires_at": "100"},
        {"expires_at": 1.5},
        {"expires_at": True},
        {"capabilities": "TmpUse"},
        {"capabilities": ["Everything"]},
        {"budget": {"calls": -1}},
        {"budget": 5},
        {"limits": {"speed": 1}},
        {"limits": {"pids": 0}},
        {"limits": {"pids": "1"}},
        {"limits": []},
        {"denials": {"people": []}},
        {"safety_floor": "mild"},
        {"safety_floor": ["safe"]},
    ],
    ids=str,
)
def test_what_is_not_exactly_a_grant_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        read_grant(FORM | change)


def test_what_is_no_object_is_refused() -> None:
    wrong: list[Any] = [None, [], "grant"]
    for form in wrong:
        with pytest.raises(InvalidRequest):
            read_grant(form)


@given(limits, limits)
def test_stated_limits_narrow_each_other(one: dict[str, int], other: dict[str, int]) -> None:
    met = narrowed(one, other)
    assert met == narrowed(other, one)
    assert met.keys() == one.keys() | other.keys()
    assert all(met[name] <= stated[name] for stated in (one, other) for name in stated)
