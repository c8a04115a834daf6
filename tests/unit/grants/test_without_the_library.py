"""Where the token library is not installed, signed grants are refused by name and the others work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ringfence.authority.credential import ProposedCall
from ringfence.authority.policy import BUILT_IN
from ringfence.clock import SystemClock
from ringfence.errors import Unavailable
from ringfence.grants.biscuit import BiscuitCodec
from ringfence.grants.calls import CallsInMemory
from ringfence.grants.issuer import LocalIssuer
from ringfence.grants.revocations import RevocationFile
from ringfence.grants.verifier import GrantVerifier
from ringfence.identifiers import TimeOrdered
from ringfence.interfaces.cli.main import main

CALL = ProposedCall("t", "s", "code_run", "c")


@pytest.fixture(autouse=True)
def without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "biscuit_auth", None)
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "home"))


@pytest.fixture
def verifier(tmp_path: Path) -> GrantVerifier:
    clock = SystemClock()
    return GrantVerifier(
        codec=BiscuitCodec(),
        find_key=lambda _: None,
        revocations=RevocationFile(tmp_path / "home", clock),
        calls=CallsInMemory(clock),
        clock=clock,
    )


def test_a_grant_that_stays_in_the_process_needs_no_library(verifier: GrantVerifier) -> None:
    verifier.check(LocalIssuer(SystemClock(), TimeOrdered()).issue(BUILT_IN, CALL), CALL)


def test_a_token_is_refused_by_the_name_of_what_is_missing(verifier: GrantVerifier) -> None:
    with pytest.raises(Unavailable) as caught:
        verifier.admit("AAAA", CALL)
    assert caught.value.reason == "extra_missing"
    assert caught.value.fix is not None
    assert "ringfence[law]" in caught.value.fix


@pytest.mark.parametrize("words", [["key", "create"], ["grant", "inspect", "AAAA"]])
def test_the_commands_say_how_to_get_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 7
    assert "PROVIDER.UNAVAILABLE extra_missing" in capsys.readouterr().err


def test_the_list_of_keys_needs_no_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "list"]) == 0
    assert capsys.readouterr().out == ""
