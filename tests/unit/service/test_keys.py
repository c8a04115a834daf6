"""API keys: made once, recognised by their hash, void at once, on both engines and for every process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import Databases

from ringfence.errors import InvalidRequest
from ringfence.service.callers import EVERY_TENANT, Access, Principal
from ringfence.service.keys import ApiKeys

DAY_MS = 24 * 3600 * 1000


@dataclass
class SetClock:
    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


def keys_in(databases: Databases, clock: SetClock | None = None) -> ApiKeys:
    return ApiKeys(databases.open(), clock or SetClock(), databases.home, shared=databases.url is not None)


def find(keys: ApiKeys, text: str) -> Principal | None:
    return asyncio.run(keys.find(text))


def test_a_key_is_recognised_by_its_text_and_by_nothing_that_is_kept(databases: Databases) -> None:
    keys = keys_in(databases)
    made, text = keys.create(Access.AGENT, tenant="acme", name="bot")
    found = find(keys, text)
    assert found is not None
    assert (found.tenant, found.caller.subject_id, found.access, found.key_id, found.reads) == (
        *("acme", "bot", Access.AGENT, made.key_id),
        "acme",
    )
    assert find(keys, made.digest.hex()) is None
    assert find(keys, f"rfk_{made.key_id}_{made.digest.hex()[:43]}") is None
    assert text.split("_", 2)[2] not in repr(keys.all())


def test_two_keys_of_one_name_speak_for_one_subject_and_each_has_an_id(databases: Databases) -> None:
    keys = keys_in(databases)
    texts = [keys.create(Access.AGENT, name="bot")[1] for _ in range(2)]
    found = [find(keys, text) for text in texts]
    assert len({one.key_id for one in found if one}) == 2
    assert {one.caller.subject_id for one in found if one} == {"bot"}


def test_a_revocation_by_another_process_counts_at_once(databases: Databases) -> None:
    here, there = keys_in(databases), keys_in(databases)
    made, text = here.create(Access.AGENT)
    assert find(here, text) is not None
    assert there.revoke(made.key_id).state(0) == "revoked"
    assert find(here, text) is None
    assert there.revoke(made.key_id).revoked_ms == there.all()[0].revoked_ms


def test_a_key_made_by_another_process_is_known_at_once(databases: Databases) -> None:
    here, there = keys_in(databases), keys_in(databases)
    assert find(here, f"rfk_{'a' * 12}_{'A' * 43}") is None
    _, text = there.create(Access.OPERATOR, tenant=EVERY_TENANT)
    found = find(here, text)
    assert found is not None
    assert (found.tenant, found.reads) == ("local", None)


def test_a_key_ends_with_its_days(databases: Databases) -> None:
    clock = SetClock()
    keys = keys_in(databases, clock)
    _, text = keys.create(Access.AGENT, days=2)
    clock.ms += 2 * DAY_MS - 1
    assert find(keys, text) is not None
    assert keys.has_active()
    clock.ms += 1
    assert find(keys, text) is None
    assert not keys.has_active()


@pytest.mark.parametrize("tenant", ["", "A", "a/b", "..", "a" * 64, "é", "a\n"])
def test_a_tenant_that_can_be_none_gets_no_key(tmp_path: Path, databases: Databases, tenant: str) -> None:
    with pytest.raises(InvalidRequest):
        keys_in(databases).create(Access.AGENT, tenant=tenant)


def test_an_agent_belongs_to_one_tenant(databases: Databases) -> None:
    with pytest.raises(InvalidRequest):
        keys_in(databases).create(Access.AGENT, tenant=EVERY_TENANT)


def test_only_an_admin_or_a_key_of_all_reads_more_than_its_tenant(databases: Databases) -> None:
    keys = keys_in(databases)
    reads = {each: keys.create(each, tenant="acme")[0].principal().reads for each in Access if each != Access.ADMIN}
    assert reads == {Access.OPERATOR: "acme", Access.AUDITOR: "acme", Access.AGENT: "acme"}
    assert keys.create(Access.ADMIN)[0].principal().reads is None
    with pytest.raises(InvalidRequest, match="reaches every tenant"):
        keys.create(Access.ADMIN, tenant="acme")


def test_a_key_that_is_not_there_cannot_be_revoked(databases: Databases) -> None:
    keys = keys_in(databases)
    for name in ("a" * 12, "", "x'; DROP TABLE api_key; --", "\0"):
        with pytest.raises(InvalidRequest, match="no such API key"):
            keys.revoke(name)


@given(text=st.one_of(st.text(max_size=80), st.from_regex(r"rfk_[a-z2-7]{12}_[A-Za-z0-9_-]{43}", fullmatch=True)))
def test_no_text_but_the_keys_own_is_a_key(text: str) -> None:
    class Nowhere:
        def __getattr__(self, name: str) -> None:
            raise AssertionError("a text that is no key must not reach the database")

    keys = ApiKeys(Nowhere(), SetClock(), Path("/nonexistent"))  # type: ignore[arg-type]
    keys._read_at = float("inf")
    assert find(keys, text) is None
