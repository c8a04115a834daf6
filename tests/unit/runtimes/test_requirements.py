"""What `packages=[…]` lets through to a package client."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.runtimes.requirements import MAX_REQUIREMENTS, environment_key, normalise

HARMLESS = re.compile(
    r"[a-z0-9]+(-[a-z0-9]+)*(\[[a-z0-9,-]+\])?((~=|==|!=|<=|>=|<|>)[a-z0-9.!+*_-]+(,(~=|==|!=|<=|>=|<|>)[a-z0-9.!+*_-]+)*)?"
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("six", "six"),
        ("  Six  ", "six"),
        ("pandas==2.2.*", "pandas==2.2.*"),
        ("Zope.Interface >= 5 , < 7", "zope-interface<7,>=5"),
        ("requests[Socks, use_chardet]~=2.31", "requests[socks,use-chardet]~=2.31"),
        ("requests[]", "requests"),
        ("torch==2.4.0+CPU", "torch==2.4.0+cpu"),
        ("numpy!=1.0rc1,>1!0.9.post1.dev2", "numpy!=1.0rc1,>1!0.9.post1.dev2"),
        ("evil.whl", "evil-whl"),
    ],
)
def test_a_requirement_has_one_canonical_spelling(written: str, canonical: str) -> None:
    assert normalise([written]) == (canonical,)


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        " ",
        "-e .",
        "-rrequirements.txt",
        "--index-url=http://attacker.example",
        "--extra-index-url",
        ".",
        "..",
        "./evil",
        "/tmp/evil",
        "~/evil",
        "evil/",
        "file:///tmp/evil",
        "git+https://attacker.example/x.git",
        "https://attacker.example/evil.whl",
        "six @ https://attacker.example/evil.whl",
        "six@file:///tmp/evil",
        "six==1.0+a.zip",
        "six==1.0+a.whl",
        "six==1.0+a.tar.gz",
        "six; python_version > '3'",
        "six;os_name=='posix'",
        "six --hash=sha256:00",
        "six --global-option=x",
        "six\n--index-url=http://attacker.example",
        "six\r",
        "six\n",
        "six\0",
        "six\t==1",
        "six #comment",
        "six==",
        "six=1",
        "six===anything",
        "six==1.*.*",
        ">=1",
        "six>=1.*",
        "six,",
        "six==1,",
        "six==$(id)",
        "six==`id`",
        "six==${HOME}",
        "$HOME",
        "six[",
        "six]",
        "six[a;b]",
        "six[--x]",
        "six six",
        "\N{CYRILLIC SMALL LETTER ES}ix",
        "six==\N{ARABIC-INDIC DIGIT ONE}",
        "s" * 300,
    ],
)
def test_anything_but_a_name_and_versions_is_refused(hostile: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        normalise([hostile])
    assert refused.value.reason == "invalid_package"


@given(st.lists(st.text(alphabet=st.sampled_from("aB1._-[]=<>~!,;@/:+* \n\r\t\0#$`'\"-é"), max_size=24), max_size=4))
def test_what_is_let_through_can_be_nothing_but_a_requirement(requirements: list[str]) -> None:
    try:
        accepted = normalise(requirements)
    except InvalidRequest:
        return
    assert all(HARMLESS.fullmatch(requirement) for requirement in accepted)
    assert normalise(accepted) == accepted


@given(st.permutations(["six", "pandas==2.2.*", "Jinja2[i18n]>=3,<4", "six"]))
def test_order_and_repetition_do_not_make_another_environment(requirements: list[str]) -> None:
    assert normalise(requirements) == ("jinja2[i18n]<4,>=3", "pandas==2.2.*", "six")


def test_a_string_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        normalise("six")


def test_a_requirement_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        normalise([b"six"])  # type: ignore[list-item]


def test_too_many_requirements_are_refused() -> None:
    with pytest.raises(InvalidRequest):
        normalise([f"package{number}" for number in range(MAX_REQUIREMENTS + 1)])


def test_the_key_depends_on_the_requirements_and_on_the_interpreter() -> None:
    keys = {
        environment_key(("six",), "cpython-311"),
        environment_key(("six",), "cpython-313"),
        environment_key(("six", "pip"), "cpython-311"),
        environment_key(("six,pip",), "cpython-311"),
    }
    assert len(keys) == 4
    assert environment_key(("b", "a"), "t") == environment_key(("a", "b"), "t")
