"""A capability is written in one way, and what is not exactly one is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.levels import SAFETY_CLASSES, SideEffect
from ringfence.capability.browser import BrowserUse
from ringfence.capability.canonical import canonical, digest
from ringfence.capability.capabilities import Capabilities, read_capabilities
from ringfence.capability.code import CodeRun
from ringfence.capability.exact import PortOpen, SecretUse, SysGpu, TmpUse
from ringfence.capability.form import KINDS, from_json, parse, to_json
from ringfence.capability.fs import FsHost, FsList, FsRead, FsWrite
from ringfence.capability.glob import matches_below, matches_path, matches_text
from ringfence.capability.net import NetHttp
from ringfence.capability.process import SHELLS, ProcExec
from ringfence.capability.template import OneOf, Pattern, Template, read_template
from ringfence.errors import InvalidRequest, PathTraversalError
from ringfence.operation import Language
from ringfence.operation import brokered as op

GET = frozenset({"GET"})
EXAMPLES: list[tuple[Any, Any, str]] = [
    (FsRead("inputs"), {"FsRead": {"path": "/workspace/inputs"}}, "fs.read:/workspace/inputs"),
    (FsWrite("/workspace/work/"), {"FsWrite": {"path": "/workspace/work"}}, "fs.write:/workspace/work"),
    (
        FsList("**/*.csv"),
        {"FsList": {"path": "/workspace", "only": ["/workspace/**/*.csv"]}},
        "fs.list:/workspace&/workspace/**/*.csv",
    ),
    (NetHttp("a.com", methods=GET), {"NetHttp": {"host": "a.com", "methods": ["GET"]}}, "net.http:GET:a.com"),
    (
        NetHttp("A.com.", 443, "https", GET),
        {"NetHttp": {"host": "a.com", "methods": ["GET"], "scheme": "https"}},
        "net.http:GET:https://a.com",
    ),
    (
        NetHttp("::1", 8080, None, GET),
        {"NetHttp": {"host": "::1", "methods": ["GET"], "port": 8080}},
        "net.http:GET:[::1]:8080",
    ),
    (BrowserUse(frozenset({"open", "extract"})), {"BrowserUse": {"scope": "extract|open"}}, "browser.use:extract|open"),
    (ProcExec("git"), {"ProcExec": {"tool": "git"}}, "proc.exec:git"),
    (TmpUse(), "TmpUse", "tmp.use"),
    (SysGpu("a100"), {"SysGpu": {"class": "a100"}}, "sys.gpu:a100"),
    (CodeRun(Language.BASH), {"CodeRun": {"language": "bash"}}, "code.run:bash"),
    (SecretUse("API_KEY"), {"SecretUse": {"name": "API_KEY"}}, "secret.use:API_KEY"),
    (PortOpen(8080), {"PortOpen": {"port": 8080}}, "port.open:8080"),
    (FsHost("/opt//tools/"), {"FsHost": {"path": "/opt/tools"}}, "fs.host:/opt/tools"),
]


@pytest.mark.parametrize(("capability", "form", "text"), EXAMPLES, ids=lambda value: str(value)[:30])
def test_the_forms_of_every_kind(capability: Any, form: Any, text: str) -> None:
    assert (to_json(capability), str(capability)) == (form, text)
    assert from_json(form) == parse(text) == capability


def test_the_examples_are_of_every_kind() -> None:
    assert {capability.tag for capability, _, _ in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize(
    "form",
    [
        None,
        7,
        [],
        {},
        "FsRead",
        "FsDelete",
        {"FsDelete": {"path": "a"}},
        {"FsRead": {}},
        {"FsRead": "inputs"},
        {"FsRead": {"path": 5}},
        {"FsRead": {"path": ""}},
        {"FsRead": {"path": "a", "mode": "rw"}},
        {"FsRead": {"path": "a", "only": "x"}},
        {"FsRead": {"path": "a", "only": [1]}},
        {"FsRead": {"path": "a"}, "FsWrite": {"path": "a"}},
        {"FsRead": {"path": "../a"}},
        {"FsRead": {"path": "/etc"}},
        {"FsRead": {"path": "a/**b"}},
        {"FsRead": {"path": "a*[b]"}},
        {"FsRead": {"path": "a\x00b"}},
        {"FsRead": {"path": "a\nb"}},
        {"FsHost": {"path": "opt"}},
        {"FsHost": {"path": "/opt/../etc"}},
        {"NetHttp": {"host": "a.com"}},
        {"NetHttp": {"methods": ["GET"]}},
        {"NetHttp": {"host": "a.com", "methods": "GET"}},
        {"NetHttp": {"host": "a.com", "methods": ["get"]}},
        {"NetHttp": {"host": "a.com", "methods": ["CONNECT"]}},
        {"NetHttp": {"host": "a.com", "methods": ["GET"], "port": "443"}},
        {"NetHttp": {"host": "a.com", "methods": ["GET"], "port": True}},
        {"NetHttp": {"host": "a.com", "methods": ["GET"], "port": 0}},
        {"NetHttp": {"host": "a.com", "methods": ["GET"], "scheme": "ftp"}},
        {"NetHttp": {"host": "a.com", "methods": ["GET"], "scheme": ["https"]}},
        {"NetHttp": {"host": "*a.com", "methods": ["GET"]}},
        {"NetHttp": {"host": "a.*", "methods": ["GET"]}},
        {"NetHttp": {"host": "*.*.com", "methods": ["GET"]}},
        {"NetHttp": {"host": "*.0.0.1", "methods": ["GET"]}},
        {"NetHttp": {"host": "*.127.0.0.1", "methods": ["GET"]}},
        {"NetHttp": {"host": "127.1", "methods": ["GET"]}},
        {"NetHttp": {"host": "0x7f000001", "methods": ["GET"]}},
        {"NetHttp": {"host": "2130706433", "methods": ["GET"]}},
        {"NetHttp": {"host": "b\u00fccher.de", "methods": ["GET"]}},
        {"NetHttp": {"host": "a.com/x", "methods": ["GET"]}},
        {"NetHttp": {"host": "u@a.com", "methods": ["GET"]}},
        {"NetHttp": {"host": "", "methods": ["GET"]}},
        {"BrowserUse": {"scope": "open|evaluate"}},
        {"BrowserUse": {"scope": ["open"]}},
        {"ProcExec": {"tool": "bash -c x"}},
        {"ProcExec": {"tool": "/bin/ls"}},
        {"ProcExec": {"tool": "./ls"}},
        {"ProcExec": {"tool": ".."}},
        {"ProcExec": {"tool": "-x"}},
        {"ProcExec": {"tool": "ls\n"}},
        {"ProcExec": {"tool": "ls", "templates": {}}},
        {"ProcExec": {"tool": "ls", "templates": [{"args": [{"enum": ["a"], "regex": "a"}]}]}},
        {"ProcExec": {"tool": "ls", "templates": [{"args": [{"enum": [1]}]}]}},
        {"ProcExec": {"tool": "ls", "templates": [{"args": ["a"]}]}},
        {"ProcExec": {"tool": "ls", "templates": [{"rest": {"enum": []}}]}},
        {"TmpUse": {"size": 1}},
        {"SysGpu": {"class": ""}},
        {"CodeRun": {"language": "cobol"}},
        {"CodeRun": {"language": ["python"]}},
        {"SecretUse": {"name": "a b"}},
        {"SecretUse": {"name": "../x"}},
        {"PortOpen": {"port": 65536}},
        {"PortOpen": {"port": "80"}},
    ],
    ids=str,
)
def test_what_is_not_exactly_a_capability_is_refused(form: Any) -> None:
    with pytest.raises(InvalidRequest):
        from_json(form)


@pytest.mark.parametrize(
    "text", ["", "fs", "fs.read", "fs.delete:/workspace", "tmp.use:x", "net.http:GET", "port.open:x",
             "port.open:\u0663", "proc.exec:ls:{", "proc.exec:ls:[[]]", "net.http:GET:a.com:x", "net.http:GET:ftp://a.com"],
)  # fmt: skip
def test_what_is_not_the_text_of_a_capability_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KINDS, "path", "host",
                    "methods", "tool", "x"]), inner, max_size=3)))  # fmt: skip
def test_nothing_but_a_capability_or_a_refusal_comes_of_any_json(form: Any) -> None:
    try:
        capability = from_json(form)
    except InvalidRequest:
        return
    assert from_json(to_json(capability)) == capability


@given(st.text(max_size=30))
def test_nothing_but_a_capability_or_a_refusal_comes_of_any_text(text: str) -> None:
    for prefix in ("", "fs.read:", "net.http:GET:", "proc.exec:", "browser.use:"):
        try:
            capability = parse(prefix + text)
        except InvalidRequest:
            continue
        assert parse(str(capability)) == capability


def test_a_set_is_a_list_of_capabilities_and_nothing_else() -> None:
    wrong: list[Any] = [{}, "TmpUse", [["TmpUse"]], None]
    for form in wrong:
        with pytest.raises(InvalidRequest):
            read_capabilities(form)
    with pytest.raises(InvalidRequest):
        Capabilities(["fs.read:/workspace"])  # type: ignore[list-item]
    assert read_capabilities(["TmpUse", "TmpUse"]).to_json() == ["TmpUse"]


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_a_shell_is_never_a_program(shell: str) -> None:
    with pytest.raises(InvalidRequest, match="is a shell"):
        ProcExec(shell)


# --- what a capability means ---------------------------------------------------------------------


def test_each_thing_that_is_wrong_with_a_request_has_its_own_reason() -> None:
    only = Capabilities([NetHttp("a.com", 8443, "https", GET), NetHttp("b.com", methods=GET)])
    reasons = {
        url: only.refusal(op.NetHttp(method, url))
        for method, url in (
            ("GET", "https://a.com:8443/"),
            ("POST", "https://a.com:8443/"),
            ("GET", "https://a.com/"),
            ("GET", "http://a.com:8443/"),
            ("GET", "https://c.com/"),
            ("GET", "https://b.com:22/"),
            ("GET", "https://user@a.com:8443/"),
        )
    }
    assert reasons == {
        "https://a.com:8443/": "method",
        "https://a.com/": "port",
        "http://a.com:8443/": "scheme",
        "https://c.com/": "host",
        "https://b.com:22/": "port",
        "https://user@a.com:8443/": "host",
    }
    assert only.allows(op.NetHttp("GET", "https://a.com:8443/"))


def test_no_port_means_the_schemes_own_and_no_method_means_none() -> None:
    both = NetHttp("a.com", methods=GET)
    urls = ("http://a.com/", "https://a.com/", "http://a.com:443/", "https://a.com:80/", "http://a.com:80/")
    allowed = [url for url in urls if both.allows(op.NetHttp("GET", url))]
    assert allowed == ["http://a.com/", "https://a.com/", "http://a.com:80/"]
    assert len(Capabilities([NetHttp("a.com")])) == 0
    assert len(Capabilities([BrowserUse(frozenset())])) == 0


def test_writing_is_not_reading_and_listing_is_neither() -> None:
    for granted, allowed in (
        (FsRead("inputs"), {"fs_read"}),
        (FsWrite("inputs"), {"fs_write", "fs_mkdir", "fs_delete"}),
        (FsList("inputs"), {"fs_list", "fs_stat"}),
    ):
        operations = [op.FsRead("inputs/a"), op.FsWrite("inputs/a"), op.FsList("inputs/a"), op.FsStat("inputs/a"),
                      op.FsMkdir("inputs/a"), op.FsDelete("inputs/a")]  # fmt: skip
        assert {operation.kind for operation in operations if granted.allows(operation)} == allowed  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    ["inputs/a", "/workspace/inputs/a", "./inputs//a", "inputs/./a", "/workspace//inputs/a/"],
)
def test_every_spelling_of_a_path_is_one_path(path: str) -> None:
    assert FsRead("inputs/a") == FsRead(path)
    assert FsRead("inputs").allows(op.FsRead(path))
    assert not FsRead("work").allows(op.FsRead(path))


@pytest.mark.parametrize(
    "path",
    [
        "inputs/../work/a",
        "..",
        "/workspace/../etc",
        "/etc/passwd",
        "/",
        "",
        "inputs/../../etc/passwd",
        "a\0b",
        "/workspacex/a",
    ],
)
def test_no_capability_allows_a_path_that_leads_elsewhere(path: str) -> None:
    assert not FsRead("/workspace").allows(op.FsRead(path))


@pytest.mark.parametrize(
    ("alias", "real"),
    [("/output/a", "artifacts/a"), ("/workspace/output/a", "artifacts/a"), ("code/a", "work/a"), ("data/a", "work/a")],
)
def test_a_capability_is_not_dodged_by_the_other_name_of_a_directory(alias: str, real: str) -> None:
    assert FsRead(alias) == FsRead(real)
    assert FsRead(real).allows(op.FsRead(alias))


def test_a_sibling_with_a_longer_name_is_not_below() -> None:
    assert not FsRead("inputs").allows(op.FsRead("inputs2/a"))
    assert not FsHost("/opt").meet(FsHost("/optional"))


def test_a_page_takes_a_verb_and_a_host() -> None:
    page = op.BrowserNav("https://a.com/")
    verb, host = BrowserUse(frozenset({"open"})), NetHttp("a.com", methods=GET)
    assert Capabilities([verb]).refusal(page) == "not_granted"
    assert Capabilities([host]).refusal(page) == "not_granted"
    assert Capabilities([BrowserUse(frozenset({"extract"})), host]).refusal(page) == "scope"
    assert Capabilities([verb, host]).allows(page)


def test_git_may_only_do_what_its_template_says() -> None:
    git = ProcExec("git", frozenset({Template((OneOf(frozenset({"status", "diff"})),))}))
    for args in (("push",), ("--exec-path=/x", "status"), ("status", "--porcelain"), (), ("status;id",)):
        assert git.refusal(op.ProcExec("git", args)) == "arguments"
    assert git.allows(op.ProcExec("git", ("status",)))
    assert git.refusal(op.ProcExec("sh", ("status",))) == "tool"


@pytest.mark.parametrize(
    "regex",
    [r"(a)\1", "(?=a)a", "(?<!a)b", r"\ba", "(?i)a", "[", "a)(b", "a{129}", "(a{20}){20}", "(" * 600, "a" * 600],
)
def test_a_pattern_that_cannot_be_matched_step_by_step_is_refused(regex: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Pattern(regex)
    assert refused.value.reason == "invalid_capability"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "regex",
    [
        "(|a)" * 42 + "b",
        "(a|aa)+b",
        "(a+)+b",
        "a?" * 60 + "b",
        ".*.*.*.*b",
        "(a*)*b",
        r"[\]](a+)+",
        "(a|ab|)" * 25 + "b",
    ],
)
def test_no_pattern_hangs_the_host(regex: str) -> None:
    # alternatives alone are enough to make a matcher that backtracks try 2**42 ways
    assert not Pattern(regex).matches("a" * 256)


def test_arguments_that_take_too_many_steps_are_none_of_the_template() -> None:
    runs = ProcExec("tool", frozenset({Template((), Pattern("[ab]*" * 20))}))
    assert runs.allows(op.ProcExec("tool", ("a",) * 1024))
    assert runs.refusal(op.ProcExec("tool", ("ab" * 128,) * 1024)) == "arguments"


def test_a_pattern_must_match_all_of_an_argument_and_never_a_long_one() -> None:
    pattern = Pattern("[a-z]+/[a-z]+")
    assert pattern.matches("a/b")
    assert not pattern.matches("a/b\n")
    assert not pattern.matches("x a/b")
    assert not Pattern("a*").matches("a" * 257)


def test_a_template_comes_back_from_json() -> None:
    template = Template((OneOf(frozenset({"b", "a"})),), Pattern("x+"))
    assert read_template(template.fields()) == template


def test_a_long_list_of_hosts_gives_the_answers_of_a_short_one() -> None:
    many = Capabilities(
        [NetHttp(f"*.h{n}.com", methods=GET) for n in range(50)] + [NetHttp("a.com", 8443, "https", GET)]
    )
    reasons = {
        (method, url): many.refusal(op.NetHttp(method, url))
        for method, url in (
            ("GET", "https://x.h7.com/"),
            ("POST", "https://x.h7.com/"),
            ("GET", "https://x.h7.com:1/"),
            ("GET", "https://h7.com/"),
            ("GET", "https://a.com/"),
            ("GET", "http://a.com:8443/"),
            ("GET", "not a url"),
        )
    }
    assert list(reasons.values()) == [None, "method", "port", "host", "port", "scheme", "host"]


def test_the_words_of_000_are_only_ever_added_to() -> None:
    assert set(KINDS) >= {"FsRead", "FsWrite", "FsList", "NetHttp", "BrowserUse", "ProcExec", "TmpUse", "SysGpu"}
    assert {str(level) for level in SAFETY_CLASSES} == {"low", "medium", "high"}
    assert set(SideEffect) >= {"none", "read", "write", "network", "filesystem", "browser", "process"}


# --- globs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("/workspace/**", "/workspace", True),
        ("/workspace/**/*.key", "/workspace/a.key", True),
        ("/workspace/**/*.key", "/workspace/a/b/c.key", True),
        ("/workspace/*.key", "/workspace/a/b.key", False),
        ("/workspace/*", "/workspace/a/b", False),
        ("/workspace/?", "/workspace/a", True),
        ("/workspace/a/**/b/**/c", "/workspace/a/b/x/b/c", True),
        ("/workspace/a/**/b", "/workspace/a/c", False),
    ],
)
def test_globs_of_paths(glob: str, path: str, matches: bool) -> None:
    assert matches_path(glob, path) is matches


def test_who_may_not_touch_a_directory_may_not_touch_what_is_in_it() -> None:
    assert matches_below("/workspace/secret", "/workspace/secret/a/b")
    assert not matches_below("/workspace/secret", "/workspace/secrets")


def test_no_glob_takes_longer_than_the_square_of_what_it_matches() -> None:
    assert not matches_text("*a" * 100 + "b", "a" * 5000)
    assert not matches_path("/workspace/" + "**/a/" * 50 + "b", "/workspace" + "/a" * 500)


# --- one text for one value ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "é\n\x01"]}, b'{"a":[true,null,"\xc3\xa9\\n\\u0001"],"b":1}'),
        ({"a": 1.0, "b": 0.5}, b'{"a":1,"b":0.5}'),
        ({"\ue000": 1, "\U0001f600": 2}, '{"\U0001f600":2,"\ue000":1}'.encode()),
    ],
)
def test_the_canonical_form(value: Any, text: bytes) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize("value", [2**53 + 1, float("nan"), float("inf"), "\ud800", object(), {1: 2}])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        canonical(value)


def test_the_digest_is_that_of_the_canonical_form() -> None:
    assert digest([]) == "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"


def test_a_path_that_climbs_is_named_as_what_it_is() -> None:
    with pytest.raises(PathTraversalError):
        FsRead("../x")
