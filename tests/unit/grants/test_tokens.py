"""A token says what its grant says, and whatever is appended to it only takes away."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.authority.test_grant import OPERATIONS, denials, grants, limits
from tests.unit.authority.test_grant import capabilities as capability_sets
from tests.unit.grants.desk import CALL, Desk

from ringfence.authority.credential import Credential
from ringfence.authority.grant import Grant
from ringfence.authority.issuer_key import IssuerKey, SigningKey, key_id_of
from ringfence.authority.levels import RiskLevel
from ringfence.authority.narrowing import MAX_CAPABILITIES, Narrowing, read_narrowing
from ringfence.capability.budget import INHERITED, Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.form import parse
from ringfence.errors import Denied, InvalidRequest
from ringfence.grants import biscuit
from ringfence.grants.biscuit import BiscuitCodec

pytestmark = pytest.mark.needs("biscuit")
CODEC = BiscuitCodec()

narrowings = st.builds(
    Narrowing,
    capabilities=st.none() | capability_sets,
    budget=st.builds(Budget, calls=st.none() | st.integers(0, 9)),
    limits=limits,
    denials=denials,
    expires_at=st.none() | st.integers(0, 2**50),
    safety_floor=st.sampled_from(list(RiskLevel)),
)


@cache
def signer() -> SigningKey:
    secret, public = CODEC.new_key()
    return SigningKey(IssuerKey(key_id_of(public), public, 0, 2**50), secret)


def decode(token: str) -> Credential:
    return CODEC.decode(token, {signer().key.key_id: signer().key}.get)


@given(grants)
@settings(max_examples=40, deadline=None)
def test_a_grant_comes_back_from_its_token_as_it_was(grant: Grant) -> None:
    found = decode(CODEC.encode(grant, signer()))
    assert found.grant == grant
    assert (found.key, found.first_expires_at, len(found.revocation_ids)) == (signer().key, grant.expires_at, 1)


@given(grants, st.lists(narrowings, max_size=3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_a_token_allows_is_the_meet_of_all_its_blocks(grant: Grant, steps: list[Narrowing]) -> None:
    token, expected = CODEC.encode(grant, signer()), grant
    for step in steps:
        token, expected = CODEC.attenuate(token, step), step.of(expected)
    found = decode(token)
    assert found.grant == expected
    assert found.first_expires_at == grant.expires_at
    assert len(set(found.revocation_ids)) == 1 + len(steps)
    for operation in OPERATIONS:
        if found.grant.capabilities.allows(operation):
            assert grant.capabilities.allows(operation)


@given(narrowings)
def test_a_narrowing_comes_back_from_json(narrowing: Narrowing) -> None:
    assert read_narrowing(narrowing.to_json()) == narrowing


def test_a_holder_who_asks_for_more_gets_no_more(desk: Desk) -> None:
    greedy = Narrowing(
        capabilities=Capabilities(map(parse, ["fs.read:/workspace", "net.http:GET:evil.example", "fs.host:/etc"])),
        budget=Budget(calls=10**6),
        expires_at=2**50,
    )
    token = desk.token(calls=2)
    before = desk.codec.decode(token, desk.keys.find).grant
    after = desk.codec.decode(desk.codec.attenuate(token, greedy), desk.keys.find).grant
    assert [str(item) for item in after.capabilities] == ["fs.read:/workspace"]
    assert (after.budget.calls, after.expires_at) == (2, before.expires_at)


@pytest.mark.parametrize("field", ["tenant", "call_id", "subject_id", "nonce", "audience", "decision_key_fingerprint"])
def test_a_narrowing_has_no_word_for_whom_or_what_a_grant_is_for(field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"a holder cannot change '{field}'"):
        read_narrowing({field: "mine"})


@pytest.mark.parametrize(
    "form",
    [
        [],
        None,
        {"capabilities": None},
        {"capabilities": ["TmpUse"] * (MAX_CAPABILITIES + 1)},
        {"expires_at": "soon"},
        {"expires_at": True},
        {"budget": {"calls": -1}},
        {"limits": {"wall_seconds": 0}},
        {"safety_floor": "harmless"},
    ],
)
def test_a_wrong_narrowing_is_refused(form: object) -> None:
    with pytest.raises(InvalidRequest):
        read_narrowing(form)


def test_narrowing_a_grant_needs_no_key_and_no_home(desk: Desk) -> None:
    token = desk.token()
    narrow = BiscuitCodec().attenuate(token, Narrowing(budget=Budget(calls=1)))
    assert desk.verifier.admit(narrow, CALL).grant.budget.calls == 1


def test_a_grant_is_narrowed_a_bounded_number_of_times(desk: Desk) -> None:
    token = desk.token()
    for _ in range(biscuit.MAX_BLOCKS - 1):
        token = desk.codec.attenuate(token, Narrowing(budget=Budget(calls=1)))
    desk.verifier.admit(token, CALL)
    with pytest.raises(InvalidRequest) as caught:
        desk.codec.attenuate(token, Narrowing(budget=Budget(calls=1)))
    assert caught.value.reason == "too_large"


def test_a_grant_too_long_for_a_token_is_not_signed(desk: Desk) -> None:
    grant = desk.credential().grant
    long = replace(grant, capabilities=Capabilities(parse(f"net.http:GET:h{at}.example") for at in range(1500)))
    with pytest.raises(InvalidRequest) as caught:
        desk.sign(long)
    assert caught.value.reason == "too_large"


def test_peeking_shows_a_token_of_a_stranger_and_decoding_refuses_it(desk: Desk) -> None:
    token = CODEC.encode(desk.credential().grant, signer())
    assert desk.codec.peek(token).grant.call_id == CALL.call_id
    with pytest.raises(Denied) as caught:
        desk.codec.decode(token, desk.keys.find)
    assert caught.value.reason == "unknown_key"


def test_a_narrowing_that_says_nothing_changes_nothing(desk: Desk) -> None:
    grant = desk.credential().grant
    assert Narrowing().of(grant) == grant
    assert Narrowing().budget == INHERITED
