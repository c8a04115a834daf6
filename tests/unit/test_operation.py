"""An operation that could not be carried out exactly as written is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun, Language, check, parse_language
from ringfence.operation import code as operation

PLAIN = CodeRun(Language.PYTHON, "print(1)")


def refusal(**changes: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refused:
        check(replace(PLAIN, **changes))
    return refused.value


def test_a_plain_run_passes() -> None:
    check(PLAIN)


def test_a_run_that_uses_every_field_passes() -> None:
    check(
        CodeRun(
            Language.BASH,
            "cat data.csv; echo ünï",
            args=("a", ""),
            stdin=b"\0\xff",
            files={"data.csv": b"\0"},
            inputs={"in/put.bin": b""},
            env={"LANG": "C.UTF-8", "_x9": ""},
            packages=("pandas",),
            preload=("numpy", "os.path", "_io"),
            session_id="tenant-1.s_2",
        )
    )


@pytest.mark.parametrize("language", Language)
def test_every_language_is_parsed_from_its_name(language: Language) -> None:
    assert parse_language(language.value) is language


@pytest.mark.parametrize("name", ["", "Python", "python ", "ruby", "py\0thon", None, 3, ["python"]])
def test_an_unknown_language_is_refused_and_the_known_ones_are_named(name: object) -> None:
    with pytest.raises(InvalidRequest, match="choose one of python, javascript, typescript, bash") as refused:
        parse_language(name)
    assert refused.value.reason == "unknown_language"


@given(st.text())
def test_any_name_but_a_language_is_refused_cleanly(name: str) -> None:
    if name in set(Language):
        return
    with pytest.raises(InvalidRequest):
        parse_language(name)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"code": "print(1)\0"}, "nul_byte"),
        ({"code": "'\ud800'"}, "invalid_text"),
        ({"args": ("fine", "not\0fine")}, "nul_byte"),
        ({"args": ("\udcff",)}, "invalid_text"),
        ({"env": {"A": "b\0c"}}, "nul_byte"),
        ({"env": {"A": "\udc80"}}, "invalid_text"),
        ({"env": {"": "x"}}, "invalid_env"),
        ({"env": {"A=B": "x"}}, "invalid_env"),
        ({"env": {"9A": "x"}}, "invalid_env"),
        ({"env": {"A\n": "x"}}, "invalid_env"),
        ({"preload": ("os; import x",)}, "invalid_preload"),
        ({"preload": ("numpy.",)}, "invalid_preload"),
        ({"preload": ("numpy\n",)}, "invalid_preload"),
        ({"preload": ("",)}, "invalid_preload"),
        ({"session_id": ""}, "invalid_session_id"),
        ({"session_id": ".."}, "invalid_session_id"),
        ({"session_id": "a/b"}, "invalid_session_id"),
        ({"session_id": "-rf"}, "invalid_session_id"),
        ({"session_id": "a\n"}, "invalid_session_id"),
        ({"session_id": "x" * 129}, "invalid_session_id"),
    ],
)
def test_what_cannot_be_carried_out_as_written_is_refused(changes: dict[str, Any], reason: str) -> None:
    assert refusal(**changes).reason == reason


@pytest.mark.parametrize(
    ("bound", "field", "at", "over"),
    [
        ("MAX_CODE_BYTES", "code", "é" * 8, "é" * 8 + "x"),
        ("MAX_STDIN_BYTES", "stdin", b"x" * 16, b"x" * 17),
        ("MAX_INPUT_BYTES", "files", {"a": b"x" * 8, "b": b"x" * 8}, {"a": b"x" * 8, "b": b"x" * 9}),
        ("MAX_INPUT_BYTES", "inputs", {"a": b"x" * 16}, {"a": b"x" * 17}),
        ("MAX_ENVIRONMENT_BYTES", "args", ("x" * 16,), ("x" * 17,)),
        ("MAX_ENVIRONMENT_BYTES", "env", {"A": "x" * 7, "B": "x" * 7}, {"A": "x" * 7, "B": "x" * 8}),
    ],
)
def test_size_is_bounded_in_bytes_and_the_bound_itself_is_allowed(
    monkeypatch: pytest.MonkeyPatch, bound: str, field: str, at: Any, over: Any
) -> None:
    monkeypatch.setattr(operation, bound, 16)
    check(replace(PLAIN, **{"code": "", field: at}))
    assert refusal(**{"code": "", field: over}).reason == "too_large"


def test_the_real_bound_on_code_holds() -> None:
    assert refusal(code="#" * (operation.MAX_CODE_BYTES + 1)).reason == "too_large"


def test_too_many_files_are_refused_however_small() -> None:
    many = {str(n): b"" for n in range(operation.MAX_INPUT_FILES + 1)}
    assert (refusal(files=many).reason, refusal(inputs=many).reason) == ("too_many_files", "too_many_files")


@given(
    code=st.text(st.characters(codec=None)),
    env=st.dictionaries(st.text(max_size=8), st.text(st.characters(codec=None), max_size=8), max_size=3),
    session_id=st.none() | st.text(max_size=8),
)
def test_whatever_passes_can_be_encoded_and_whatever_does_not_is_an_invalid_request(
    code: str, env: dict[str, str], session_id: str | None
) -> None:
    run = replace(PLAIN, code=code, env=env, session_id=session_id)
    try:
        check(run)
    except InvalidRequest:
        return
    everything = [code, session_id or "x", *env, *env.values()]
    assert all(b"\0" not in text.encode() for text in everything)


def test_the_empty_defaults_cannot_be_written_to_by_one_run_for_the_next() -> None:
    with pytest.raises(TypeError):
        PLAIN.env["LEFT"] = "behind"  # type: ignore[index]
