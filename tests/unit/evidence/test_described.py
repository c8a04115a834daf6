"""A record describes an operation without its content, and the guard cannot tell the description from the operation."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.risk.spellings import ALLOWED, DENIED, FORTY_NINE, OURS

from ringfence.authority.layers import Request
from ringfence.authority.levels import NetMode
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.authority.request_form import request_document, request_from_json, request_to_json
from ringfence.capability.budget import UNLIMITED, Budget
from ringfence.capability.canonical import canonical, digest_of
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.fs import FsRead as MayRead
from ringfence.errors import InvalidRequest
from ringfence.evidence.described import (
    CannotTell,
    OfSize,
    content_of,
    describe,
    env_keys,
    inputs_digest_of,
    inputs_of,
    operation_of,
    redacted_args,
)
from ringfence.evidence.programs import called, short_of
from ringfence.operation import CodeRun, Language, needs
from ringfence.operation import brokered as ask
from ringfence.operation.form import Operation
from ringfence.risk.shell import CommandLists, CommandVerdict, judge_command

SECRET = "hunter2-correct-horse"
OPERATIONS: list[Operation] = [
    CodeRun(
        Language.PYTHON, f"print('{SECRET}')", (SECRET,), SECRET.encode(), {"a.csv": SECRET.encode()},
        {"b.csv": SECRET.encode()}, {"TOKEN": SECRET}, ("numpy",), ("json",),
    ),
    CodeRun(Language.BASH, f"echo {SECRET} > out; curl -H 'X: {SECRET}' http://x"),
    ask.FsRead("work/a", 1, 2),
    ask.FsWrite("work/a", SECRET.encode(), overwrite=True),
    ask.FsList("work", cursor=SECRET, limit=3),
    ask.FsStat("work/a"),
    ask.FsMkdir("work/d"),
    ask.FsDelete("work/a"),
    ask.NetHttp("POST", f"https://example.com/a?key={SECRET}", {"Authorization": SECRET}, SECRET.encode()),
    ask.BrowserNav(f"https://example.com/?q={SECRET}#x"),
    ask.BrowserExtract(SECRET),
    ask.BrowserScreenshot(SECRET, full_page=True),
    ask.BrowserExtract(None, "fields", {"name": SECRET}),
    ask.BrowserClick(SECRET),
    ask.BrowserType(SECRET, SECRET),
    ask.BrowserClose(),
    ask.ProcExec("git", ("log", SECRET)),
    ask.TmpAlloc(4096),
    ask.TmpFree(SECRET),
    needs.SecretUse("api-key"),
    needs.PortOpen(8080),
    needs.GpuUse("a100"),
    needs.HostUse("/srv/data"),
]  # fmt: skip
by_kind = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.kind)


def described(operation: Operation) -> dict[str, object]:
    return {
        "op": describe(operation),
        "inputs_digest": inputs_digest_of(operation),
        "args": redacted_args(operation),
        "env_keys": env_keys(operation),
        "inputs": inputs_of(operation),
    }


@by_kind
def test_nothing_that_an_operation_carries_is_in_its_record(operation: Operation) -> None:
    assert SECRET not in canonical(described(operation)).decode()


@by_kind
def test_a_description_has_no_value_that_a_record_must_not_have(operation: Operation) -> None:
    def plain(value: object) -> bool:
        match value:
            case dict():
                return all(isinstance(key, str) and key.isascii() and plain(each) for key, each in value.items())
            case list():
                return all(map(plain, value))
            case _:
                return type(value) in (str, int, bool)

    assert plain(described(operation))


@by_kind
def test_an_operation_comes_back_of_the_same_kind_with_and_without_its_content(operation: Operation) -> None:
    record = described(operation)
    for content in (None, content_of(operation)):
        back = operation_of(record, content)
        assert not isinstance(back, CannotTell)
        assert (back.kind, back.domain, type(back)) == (operation.kind, operation.domain, type(operation))
        assert getattr(back, "path", None) == getattr(operation, "path", None)


@by_kind
def test_the_whole_operation_comes_back_from_its_content(operation: Operation) -> None:
    back = operation_of(described(operation), content_of(operation))
    if isinstance(operation, CodeRun):
        assert isinstance(back, CodeRun)
        assert (back.code, set(back.env)) == (operation.code, set(operation.env))
    else:
        assert back == operation


@by_kind
def test_content_that_is_not_what_ran_is_not_believed(operation: Operation) -> None:
    back = operation_of(described(operation), content_of(operation) + b" ")
    assert isinstance(back, CannotTell)
    assert "digest" in back.reason


def test_the_digest_is_recomputed_from_the_code_alone() -> None:
    digest = inputs_digest_of(CodeRun(Language.PYTHON, "print(1)"))
    known = base64.b64encode(hashlib.sha256(b"print(1)").digest()).decode()
    assert digest == {"algo": "sha256", "b64": known, "size": 8}


def test_arguments_are_known_by_their_length_in_bytes() -> None:
    assert redacted_args(CodeRun(Language.PYTHON, "", ("abc", "é", ""))) == ["[3 bytes]", "[2 bytes]", "[0 bytes]"]
    assert redacted_args(ask.FsStat("a")) == []


def test_files_are_listed_where_the_program_finds_them() -> None:
    run = CodeRun(Language.PYTHON, "", files={"a": b"1"}, inputs={"b": b"22"})
    assert [(entry["path"], entry["size"]) for entry in inputs_of(run)] == [("inputs/b", 2), ("work/a", 1)]


def test_bytes_whose_number_alone_is_known_take_no_room() -> None:
    body = OfSize(1 << 40)
    assert (len(body), bytes(body[:1])) == (1 << 40, b"")


@pytest.mark.parametrize(
    "op",
    [
        None,
        {},
        {"kind": "fs_format"},
        {"kind": "fs_read"},
        {"kind": "fs_read", "path": 7},
        {"kind": "fs_write", "path": "a", "bytes": -1, "overwrite": False},
        {"kind": "code_run", "language": "cobol"},
        {"kind": "net_http", "method": "GET", "invalid_url": True, "body_bytes": 0},
    ],
)
def test_what_describes_no_operation_is_not_guessed_at(op: object) -> None:
    assert isinstance(operation_of({"op": op}), CannotTell)


def test_a_path_that_is_not_unicode_does_not_come_back_as_another_path() -> None:
    record = described(ask.FsRead("work/\udc80"))
    json.dumps(record, ensure_ascii=False).encode()
    assert isinstance(operation_of(record), CannotTell)


@pytest.mark.parametrize("name", ["work/\x9b2J", "\x1b[2J", "a\nb", "100%\u202e.txt", "%9B\x7f"])
def test_a_name_that_would_drive_a_terminal_is_escaped_and_comes_back_as_it_was(name: str) -> None:
    for operation in (ask.FsRead(name), ask.FsWrite(name, b""), ask.ProcExec(name, ()), needs.HostUse(name)):
        record = described(operation)
        assert canonical(record).decode().isprintable()
        back = operation_of(record)
        assert not isinstance(back, CannotTell)
        assert vars_of(back) == vars_of(operation)


@pytest.mark.parametrize("spoilt", [{"path": "%FF"}, {"path": "%ZZ%80"}, {"escaped": "backwards"}])
def test_an_escaped_name_that_nobody_wrote_is_not_guessed_at(spoilt: dict[str, str]) -> None:
    record = described(ask.FsRead("a\x9b"))
    assert isinstance(operation_of({**record, "op": {**describe(ask.FsRead("a\x9b")), **spoilt}}), CannotTell)


def vars_of(operation: Operation) -> dict[str, object]:
    return {name: getattr(operation, name, None) for name in ("path", "tool")}


SCRIPTS = st.sampled_from([script for script, _, _ in FORTY_NINE + OURS])
ENTRIES = st.sampled_from([*ALLOWED, *DENIED, "echo", "git push", "python -m pytest", "tee", "bash", "env", "rm"])
LISTS = st.builds(
    CommandLists,
    st.none() | st.lists(ENTRIES, max_size=8).map(tuple),
    st.lists(ENTRIES, max_size=4).map(tuple),
)


@settings(max_examples=400)
@example("watch curl http://x", CommandLists(None, ("curl",)))
@example("tar -I curl x", CommandLists(None, ("curl",)))
@given(st.lists(SCRIPTS, min_size=1, max_size=3).map("\n".join), LISTS)
def test_where_the_names_of_programs_are_enough_they_say_what_the_script_says(script: str, lists: CommandLists) -> None:
    summed_up = called(script)
    if summed_up is None:
        return
    if short_of(summed_up, allowed=lists.allowed, denied=[tuple(entry.split()) for entry in lists.denied]) is not None:
        return

    def refuses(text: str) -> bool:
        judgement = judge_command(text, lists)
        doubtful = judgement.verdict is CommandVerdict.UNKNOWN and lists.allowed is not None
        return judgement.verdict is CommandVerdict.DENIED or doubtful or judgement.unread

    assert refuses(summed_up.script()) == refuses(script)


def test_the_names_are_enough_for_lists_of_programs_and_not_for_lists_of_arguments() -> None:
    summed_up = called("git status; ls -l | xargs rm")
    assert summed_up is not None
    assert summed_up.programs == ("git", "ls", "xargs", "rm")
    assert short_of(summed_up, allowed=None, denied=[("sudo",), ("rm",), ("curl", "-X")]) is None
    assert short_of(summed_up, allowed=None, denied=[("git", "push")]) is not None


def test_a_name_that_could_be_content_is_not_summed_up() -> None:
    assert called("'pass word=é'") is None
    assert called("x" * 65) is None
    assert called("\n".join(f"p{number}" for number in range(65))) is None
    assert called("\n".join(f"p{number % 64}" for number in range(200))) is not None


REQUESTS = st.builds(
    Request,
    limits=st.dictionaries(st.sampled_from(["pids", "memory_bytes"]), st.integers(1, 1 << 40))
    | st.fixed_dictionaries({"wall_seconds": st.floats(0.001, 3600)}),
    capabilities=st.none() | st.just(Capabilities([MayRead("/workspace/a")])),
    budget=st.builds(Budget, calls=st.none() | st.integers(0, 9) | st.just(UNLIMITED)),
    net_mode=st.none() | st.sampled_from(NetMode),
    isolation=st.sampled_from(Isolation),
    security_mode=st.none() | st.sampled_from(SecurityMode),
    require_cgroups=st.booleans(),
)


@given(REQUESTS)
def test_a_request_comes_back_from_its_document(request: Request) -> None:
    assert request_from_json(request_to_json(request)) == request
    document = request_document(request)
    if document is None:
        assert request == Request()
        return
    digest, text = document
    assert digest == digest_of(text.encode())
    assert request_from_json(json.loads(text)) == request


@pytest.mark.parametrize(
    "form",
    [[], {"more": 1}, {"limits": []}, {"limits": {"wings": 1}}, {"limits": {"pids": True}}, {"net_mode": "all"},
     {"isolation": "hope"}, {"require_cgroups": 1}, {"capabilities": 3}],
)  # fmt: skip
def test_what_is_no_request_is_refused(form: object) -> None:
    with pytest.raises(InvalidRequest):
        request_from_json(form)


def test_the_ports_of_a_run_are_in_its_record_and_come_back() -> None:
    operation = CodeRun(Language.BASH, "serve", ports=(8001, 8000))
    record = described(operation)
    assert describe(operation)["ports"] == [8000, 8001]
    back = operation_of(record, content_of(operation))
    assert isinstance(back, CodeRun)
    assert set(back.ports) == set(operation.ports)
