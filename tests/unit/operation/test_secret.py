"""How a secret is asked for, as text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.operation.secret import SecretAsk, Way, read_ask

LABELS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
INTO_A_BOX = st.builds(SecretAsk, LABELS, st.sampled_from([Way.ENV, Way.FILE]), st.just("") | LABELS, st.booleans())
ASKS = INTO_A_BOX | st.builds(SecretAsk, LABELS, lasting=st.booleans())


@given(ASKS)
def test_what_is_asked_for_is_read_as_it_is_written(ask: SecretAsk) -> None:
    assert read_ask(str(ask)) == ask


def test_for_one_run_can_be_said_and_is_what_is_meant_without() -> None:
    assert read_ask("TOKEN=env@task") == read_ask("TOKEN=env") == SecretAsk("TOKEN", Way.ENV)
    assert read_ask("TOKEN@conversation") == SecretAsk("TOKEN", lasting=True)


@pytest.mark.parametrize(
    "text", ["TOKEN@week", "TOKEN=env@week", "@conversation", "TOKEN@conversation@task", "TOKEN@task@conversation", ""]
)
def test_there_is_no_other_scope(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_ask(text)
    assert refused.value.reason == "invalid_secret"
