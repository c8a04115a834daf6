"""Every bad grant has a reason of its own, and what can change is looked at every time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.grants.desk import CALL, Desk, another

from ringfence.authority.credential import Credential, ProposedCall, unsigned
from ringfence.authority.issuer_key import CLOCK_TOLERANCE_MS, IssuerKey, SigningKey, key_id_of
from ringfence.authority.narrowing import Narrowing
from ringfence.authority.policy_reader import load_policy
from ringfence.capability.budget import Budget
from ringfence.errors import Denied, InvalidRequest, QuotaExceeded
from ringfence.errors.table import TABLE
from ringfence.grants import verifier as verifier_module
from ringfence.grants.door import GrantDoor
from ringfence.grants.issuer import MAX_LIFETIME_MS

pytestmark = pytest.mark.needs("biscuit")


def reason(admit: Callable[[], object]) -> str:
    with pytest.raises(Denied) as caught:
        admit()
    assert caught.value.code == "SANDBOX.PERMISSION_DENY"
    assert caught.value.reason in TABLE[caught.value.code].reasons
    return caught.value.reason


def test_a_good_grant_is_admitted_signed_or_not(desk: Desk) -> None:
    assert desk.verifier.admit(desk.token(), CALL).grant.call_id == CALL.call_id
    desk.verifier.check(desk.credential(), CALL)


def test_it_is_over_in_the_millisecond_it_expires_in(desk: Desk) -> None:
    token = desk.token()
    grant = desk.verifier.admit(token, CALL).grant
    desk.clock.ms = grant.expires_at - 1
    desk.verifier.admit(token, CALL)
    desk.clock.ms = grant.expires_at
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "expired"


def test_an_issuers_clock_may_be_ahead_by_the_stated_tolerance_and_no_more(desk: Desk) -> None:
    ahead = replace(desk.credential().grant, not_before=desk.clock.ms + CLOCK_TOLERANCE_MS)
    desk.verifier.admit(desk.sign(ahead), CALL)
    too_far = replace(ahead, not_before=ahead.not_before + 1)
    assert reason(lambda: desk.verifier.admit(desk.sign(too_far), CALL)) == "not_yet_valid"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tenant": "other"}, "tenant_mismatch"),
        ({"audience": "site-b"}, "audience_mismatch"),
        ({"audience": ""}, "audience_mismatch"),
        ({"subject_id": "agent-8"}, "subject_mismatch"),
        ({"tool_name": "shell_exec"}, "tool_mismatch"),
        ({"call_id": "call-2"}, "call_mismatch"),
    ],
)
def test_a_grant_is_good_for_exactly_its_call(desk: Desk, change: dict[str, str], expected: str) -> None:
    call = another(CALL, **change)
    token, local = desk.token(), desk.credential()
    assert reason(lambda: desk.verifier.admit(token, call)) == expected
    assert reason(lambda: desk.verifier.check(local, call)) == expected


@pytest.mark.parametrize("field", ["call_id", "decision_key_fingerprint", "nonce"])
def test_a_grant_bound_to_no_single_decision_is_good_for_none(desk: Desk, field: str) -> None:
    unbound: Any = {field: ""}
    grant = replace(desk.credential().grant, **unbound)
    call = another(CALL, call_id=grant.call_id)
    assert reason(lambda: desk.verifier.check(unsigned(grant), call)) == "call_mismatch"


def test_a_grant_of_a_key_nobody_here_knows_is_refused(desk: Desk) -> None:
    secret, public = desk.codec.new_key()
    stranger = SigningKey(IssuerKey(key_id_of(public), public, 0, 2**50), secret)
    token = desk.codec.encode(desk.credential().grant, stranger)
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "unknown_key"


def test_a_grant_that_names_our_key_and_is_signed_by_another_is_refused(desk: Desk) -> None:
    ours = desk.keys.signing_key().key
    secret, public = desk.codec.new_key()
    # the stranger's own public half, under the id of ours
    forged = SigningKey(IssuerKey(ours.key_id, public, 0, 2**50), secret)
    token = desk.codec.encode(desk.credential().grant, forged)
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "wrong_key"
    # and the same with our public half written into it
    liar = SigningKey(replace(ours), secret)
    token = desk.codec.encode(desk.credential().grant, liar)
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "tampered"


@pytest.mark.parametrize("token", ["", "x", "not a token", "é", "\0", "A" * 70_000, "Cg==", b"bytes", None])
def test_what_is_no_token_is_refused_as_unreadable(desk: Desk, token: str) -> None:
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "bad_token"


def test_an_old_key_verifies_after_a_new_one_signs_and_until_its_own_end(desk: Desk) -> None:
    old = desk.keys.signing_key().key
    token = desk.sign(replace(desk.credential().grant, expires_at=2**50))
    desk.clock.ms += 1000
    new = desk.keys.create()
    assert desk.keys.signing_key().key == new
    desk.verifier.admit(token, CALL)
    desk.clock.ms = old.expires_at
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "key_expired"
    assert new.is_valid(desk.clock.ms)


def test_everything_a_revoked_key_signed_is_void_at_once(desk: Desk) -> None:
    token = desk.token()
    desk.verifier.admit(token, CALL)
    desk.beside().keys.revoke(desk.keys.signing_key().key.key_id)
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "key_revoked"


def test_operations_within_one_call_spend_its_calls(desk: Desk) -> None:
    credential = desk.verifier.admit(desk.token(calls=2), CALL)
    desk.calls.spend(credential)
    desk.calls.spend(credential)
    with pytest.raises(QuotaExceeded) as caught:
        desk.calls.spend(credential)
    assert (caught.value.code, caught.value.reason) == ("QUOTA.BUDGET_EXCEEDED", "calls")


def test_no_more_than_its_calls_are_spent_by_however_many_at_once(desk: Desk) -> None:
    credential = desk.credential(calls=50)
    spent: list[int] = []

    def spend() -> None:
        for _ in range(25):
            with contextlib.suppress(QuotaExceeded):
                desk.calls.spend(credential)
                spent.append(1)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spent) == 50


def test_a_grant_that_allows_no_call_allows_none(desk: Desk) -> None:
    with pytest.raises(QuotaExceeded):
        desk.calls.spend(desk.credential(calls=0))


def test_halves_of_one_grant_share_its_calls(desk: Desk) -> None:
    token = desk.token(calls=3)
    halves = [desk.codec.attenuate(token, Narrowing(budget=Budget(calls=2))) for _ in range(2)]
    one, other = (desk.verifier.admit(half, CALL) for half in halves)
    desk.calls.spend(one)
    desk.calls.spend(other)
    for half in (one, other):
        with pytest.raises(QuotaExceeded):
            desk.calls.spend(half)
    desk.calls.spend(desk.verifier.admit(token, CALL))


def test_a_grant_presented_after_its_call_was_closed_is_replayed(desk: Desk) -> None:
    token = desk.token()
    desk.calls.close(desk.verifier.admit(token, CALL))
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "replayed"
    narrowed = desk.codec.attenuate(token, Narrowing(budget=Budget(calls=1)))
    assert reason(lambda: desk.verifier.admit(narrowed, CALL)) == "replayed"


def test_a_call_closed_under_a_narrowed_grant_stays_closed_for_the_wider_one(desk: Desk) -> None:
    token = desk.token()
    soon = desk.clock.ms + 1000
    short = desk.verifier.admit(desk.codec.attenuate(token, Narrowing(expires_at=soon)), CALL)
    desk.calls.close(short)
    desk.clock.ms = soon + 1
    for number in range(3000):  # enough for the register to sweep
        desk.calls.spend(desk.credential(another(CALL, call_id=f"c{number}")))
    assert reason(lambda: desk.verifier.admit(token, CALL)) == "replayed"


def test_spending_after_the_close_is_a_replay_even_for_who_was_admitted_before(desk: Desk) -> None:
    credential = desk.verifier.admit(desk.token(), CALL)
    desk.calls.close(credential)
    assert reason(lambda: desk.calls.spend(credential)) == "replayed"


def test_calls_whose_grants_are_long_over_are_forgotten(desk: Desk) -> None:
    for number in range(1500):
        desk.calls.spend(desk.credential(another(CALL, call_id=f"c{number}")))
    desk.clock.ms += MAX_LIFETIME_MS + 1
    for number in range(3000):
        desk.calls.spend(desk.credential(another(CALL, call_id=f"d{number}")))
    assert len(desk.calls._calls) <= 3001


def test_the_signature_is_checked_once_per_token(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = desk.codec.decode

    def counted(token: str, find: Callable[[str], IssuerKey | None]) -> Credential:
        decoded.append(token)
        return decode(token, find)

    monkeypatch.setattr(desk.codec, "decode", counted)
    token = desk.token()
    for _ in range(5):
        desk.verifier.admit(token, CALL)
    assert decoded == [token]


def test_what_is_remembered_of_tokens_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "MOST_REMEMBERED", 3)
    tokens = [desk.token(another(CALL, call_id=f"c{number}")) for number in range(5)]
    for number, token in enumerate(tokens):
        desk.verifier.admit(token, another(CALL, call_id=f"c{number}"))
    assert len(desk.verifier._known) == 3
    assert not any(token.encode() in name for token in tokens for name in desk.verifier._known)


def test_the_local_issuer_grants_what_the_policy_gives_the_role_and_nothing_where_it_refuses(desk: Desk) -> None:
    policy = load_policy(
        b"""policies:
  default: {}
  tools: {file_read: {risk_level: low, allowed_paths: ["/workspace/inputs/**"]}, shell_exec: {risk_level: high}}
  agent_roles: {reader: {tools: [file_read]}}
"""
    )
    good = desk.issuer.issue(policy, CALL, role="reader").grant
    assert good.capabilities == policy.view("file_read", "reader").capabilities
    refused = desk.issuer.issue(policy, another(CALL, tool_name="shell_exec"), role="reader").grant
    assert len(refused.capabilities) == 0


def test_no_two_grants_are_the_same_decision(desk: Desk) -> None:
    one, other = desk.credential().grant, desk.credential().grant
    assert one.nonce != other.nonce
    assert one.decision_key_fingerprint != other.decision_key_fingerprint
    assert one.decision_key_fingerprint.startswith("sha256:")


@pytest.mark.parametrize("lifetime", [0, -1, MAX_LIFETIME_MS + 1])
def test_a_grant_lives_neither_for_nothing_nor_for_ever(desk: Desk, lifetime: int) -> None:
    from ringfence.authority.policy import BUILT_IN

    with pytest.raises(InvalidRequest):
        desk.issuer.issue(BUILT_IN, CALL, lifetime_ms=lifetime)
    with pytest.raises(InvalidRequest):
        desk.issuer.issue(BUILT_IN, ProposedCall("t", "s", "x", ""))


def test_the_door_counts_what_is_done_under_a_grant_before_any_meter_does(desk: Desk) -> None:
    door = GrantDoor(desk.verifier, desk.calls)
    who = {"tenant": CALL.tenant, "subject_id": CALL.subject_id, "call_id": CALL.call_id}
    presented = door.present(desk.token(another(CALL, audience=""), calls=2), **who)
    for _ in range(2):
        assert presented.grant_for(CALL.tool_name).call_id == CALL.call_id
    with pytest.raises(QuotaExceeded):
        presented.grant_for(CALL.tool_name)
