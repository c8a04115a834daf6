"""Whose turn it is: nobody starves, no cap is exceeded, and within a tenant whoever came first goes first."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import Overloaded
from ringfence.service.admission import SCOPES, Admission, Caps, Claim, Line

CLAIMS = st.builds(
    Claim, tenant=st.sampled_from("abc"), user=st.sampled_from("xy"), space=st.sampled_from([None, "s", "t"])
)
CAPS = st.builds(
    Caps,
    instance=st.integers(1, 4),
    tenant=st.none() | st.integers(1, 3),
    space=st.none() | st.integers(1, 2),
    user=st.none() | st.integers(1, 2),
)
STEPS = st.lists(st.one_of(CLAIMS, st.just("end"), st.just("withdraw")), max_size=60)


class Played:
    """A line with what happened in it, checked after every step."""

    def __init__(self, caps: Caps) -> None:
        self.caps = caps
        self.line = Line(caps)
        self.waiting: dict[int, Claim] = {}
        self.running: dict[int, Claim] = {}
        self.admitted: list[int] = []
        self.claims: dict[int, Claim] = {}

    def join(self, claim: Claim) -> None:
        ticket = len(self.claims)
        self.claims[ticket] = self.waiting[ticket] = claim
        self.line.join(ticket, claim)
        self.admit()

    def end(self) -> None:
        if self.running:
            ticket = min(self.running)
            self.line.done(self.running.pop(ticket))
            self.admit()

    def withdraw(self) -> None:
        if self.waiting:
            ticket = max(self.waiting)
            assert self.line.withdraw(ticket, self.waiting.pop(ticket))

    def admit(self) -> None:
        while (ticket := self.line.next()) is not None:
            self.running[ticket] = self.waiting.pop(ticket)
            self.admitted.append(ticket)
        assert self.line.running == len(self.running)
        assert self.line.waiting == len(self.waiting)

    def counts(self) -> Counter[tuple[str, str, str]]:
        return Counter(account for claim in self.running.values() for account in claim.scopes())


def play(caps: Caps, steps: list[Any]) -> Played:
    played = Played(caps)
    for step in steps:
        match step:
            case "end":
                played.end()
            case "withdraw":
                played.withdraw()
            case claim:
                played.join(claim)
        check_caps(played)
    return played


def check_caps(played: Played) -> None:
    for (scope, _, _), count in played.counts().items():
        most = played.caps.running_in(scope)
        assert most is None or count <= most


@given(CAPS, STEPS)
def test_no_cap_is_ever_exceeded(caps: Caps, steps: list[Any]) -> None:
    play(caps, steps)


@given(CAPS, STEPS)
def test_nobody_waits_while_every_scope_of_his_has_room(caps: Caps, steps: list[Any]) -> None:
    played = play(caps, steps)
    counts = played.counts()
    for claim in played.waiting.values():
        assert any(
            (most := caps.running_in(account[0])) is not None and counts[account] >= most for account in claim.scopes()
        )


@given(CAPS, STEPS)
def test_whoever_came_first_on_the_same_account_goes_first(caps: Caps, steps: list[Any]) -> None:
    played = play(caps, steps)
    for account in set(played.claims.values()):
        order = [ticket for ticket in played.admitted if played.claims[ticket] == account]
        assert order == sorted(order)


@given(CAPS, STEPS)
def test_everybody_gets_his_turn_once_those_before_him_end(caps: Caps, steps: list[Any]) -> None:
    played = play(caps, steps)
    for _ in range(len(played.claims) + 1):
        played.end()
    assert not played.waiting
    assert not played.running
    assert len(set(played.admitted)) == len(played.admitted)


@given(st.integers(1, 50), st.integers(1, 5))
def test_a_crowd_of_one_tenant_holds_another_up_for_one_turn_only(crowd: int, others: int) -> None:
    played = Played(Caps(instance=1))
    for _ in range(crowd):
        played.join(Claim("crowd", "x"))
    for _ in range(others):
        played.join(Claim("small", "y"))
    for _ in range(2 * others + 1):
        played.end()
    turns = [played.claims[ticket].tenant for ticket in played.admitted[: 2 * others + 1]]
    assert turns.count("small") >= min(others, len(turns) // 2)


def test_within_a_tenant_the_line_is_first_come_first_served() -> None:
    played = Played(Caps(instance=1))
    for user in "xyxyx":
        played.join(Claim("a", user))
    for _ in range(5):
        played.end()
    assert played.admitted == [0, 1, 2, 3, 4]


def test_one_whose_user_is_at_its_cap_holds_up_nobody_else() -> None:
    played = Played(Caps(instance=4, user=1))
    for user in ("greedy", "greedy", "other"):
        played.join(Claim("a", user))
    assert played.admitted == [0, 2]
    played.end()
    assert played.admitted == [0, 2, 1]


@pytest.mark.parametrize(
    ("caps", "scope"),
    [
        (Caps(instance=1, waiting=1), "instance"),
        (Caps(instance=1, waiting_of_tenant=1), "tenant"),
        (Caps(instance=4, space=1, waiting_of_space=1), "space"),
        (Caps(instance=4, user=1, waiting_of_user=1), "user"),
    ],
)
def test_a_full_line_refuses_and_names_the_scope(caps: Caps, scope: str) -> None:
    async def crowd() -> None:
        admission = Admission(caps)
        claim = Claim("a", "x", "s")
        for _ in range(2):
            assert admission.refusal_of(claim) is None
            admission.join(claim)
        refused = admission.refusal_of(claim)
        assert isinstance(refused, Overloaded)
        assert refused.answer.http_status == 429
        assert refused.retryable
        assert refused.details["scope"] == scope
        assert refused.details["limit"] == 1
        assert int(refused.details["retry_after_seconds"]) >= 1

    asyncio.run(crowd())


def test_one_tenants_crowd_leaves_room_in_line_for_another() -> None:
    line = Line(Caps(instance=1))
    ticket = 0
    while line.full_for(Claim("crowd", "x")) is None:
        ticket += 1
        line.join(ticket, Claim("crowd", "x"))
        line.next()
    assert line.full_for(Claim("crowd", "other")) == "tenant"
    assert line.full_for(Claim("small", "y")) is None


def test_the_default_line_holds_at_least_256_of_one_tenant() -> None:
    line = Line(Caps())
    for ticket in range(256 + Caps().instance):
        assert line.full_for(Claim("a", "x")) is None
        line.join(ticket, Claim("a", "x"))
        line.next()


def test_who_runs_when_the_line_is_empty_needs_no_place_in_it() -> None:
    assert Line(Caps(instance=1, waiting=0)).full_for(Claim("a", "x")) is None


def test_a_turn_comes_when_one_ends_and_not_before() -> None:
    async def two() -> None:
        admission = Admission(Caps(instance=1))
        first, second = admission.join(Claim("a", "x")), admission.join(Claim("a", "x"))
        await admission.wait(first)
        waiting = asyncio.ensure_future(admission.wait(second))
        await asyncio.sleep(0)
        assert not waiting.done()
        admission.leave(first)
        await waiting
        admission.leave(second)
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(two())


def test_who_is_cancelled_in_line_leaves_it_and_who_is_cancelled_at_his_turn_gives_it_back() -> None:
    async def three() -> None:
        admission = Admission(Caps(instance=1))
        first, second, third = (admission.join(Claim("a", "x")) for _ in range(3))
        await admission.wait(first)
        waits = [asyncio.ensure_future(admission.wait(turn)) for turn in (second, third)]
        await asyncio.sleep(0)
        admission.leave(first)  # it is the second's turn now
        waits[0].cancel()  # who does not hear of it any more
        await asyncio.gather(*waits, return_exceptions=True)
        assert waits[0].cancelled()
        assert not waits[1].cancelled()
        admission.leave(third)
        assert (admission.running, admission.waiting) == (0, 0)

    asyncio.run(three())


def test_leaving_twice_gives_back_one_turn() -> None:
    async def twice() -> None:
        admission = Admission(Caps(instance=2))
        first, _ = admission.join(Claim("a", "x")), admission.join(Claim("a", "x"))
        admission.leave(first)
        admission.leave(first)
        assert admission.running == 1

    asyncio.run(twice())


def test_every_scope_has_its_caps() -> None:
    caps = Caps(instance=1, tenant=2, space=3, user=4, waiting=5, waiting_of_tenant=6, waiting_of_space=7)
    assert [caps.running_in(scope) for scope in SCOPES] == [1, 2, 3, 4]
    assert [caps.waiting_in(scope) for scope in SCOPES] == [5, 6, 7, None]
