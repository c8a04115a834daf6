"""Who calls is named so that no file system and no record can take it for another."""

from __future__ import annotations

import pytest

from ringfence.authority.caller import NOBODY_ELSE, Caller, check_tenant
from ringfence.errors import InvalidRequest


@pytest.mark.parametrize("tenant", ["local", "acme", "a", "0", "a-b_c9", "x" * 63])
def test_a_tenant_has_a_plain_lower_case_name(tenant: str) -> None:
    assert Caller(tenant).tenant == tenant


@pytest.mark.parametrize(
    "tenant", ["", "..", ".", "a/b", "Acme", "a b", "-a", "_a", "a\n", "a\0", "ä", "x" * 64, None, 7, b"a"]
)
def test_whatever_could_be_another_path_or_another_tenant_is_refused(tenant: object) -> None:
    with pytest.raises(InvalidRequest, match="tenant"):
        check_tenant(tenant)


@pytest.mark.parametrize("subject", ["", "a\nb", "x" * 257, None])
def test_a_subject_is_something_that_can_be_printed(subject: str) -> None:
    with pytest.raises(InvalidRequest, match="subject_id"):
        Caller("acme", subject)


def test_who_says_nothing_is_local() -> None:
    assert (NOBODY_ELSE.tenant, NOBODY_ELSE.subject_id) == ("local", "local")
