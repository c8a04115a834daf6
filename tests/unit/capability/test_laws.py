"""The algebra holds: in every case of a small universe, and in whatever Hypothesis thinks of.

The numbers are the proof obligations of the model: (1) idempotent, commutative, associative; (2) and (3) what the meet
allows is exactly what both allow; (4) attenuation never widens; (5) one normal form, one hash.
"""

from __future__ import annotations

import itertools
from functools import cache, reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.capability.browser import VERBS, BrowserUse
from ringfence.capability.capabilities import Capabilities, read_capabilities
from ringfence.capability.code import CodeRun
from ringfence.capability.exact import PortOpen, SecretUse, SysGpu, TmpUse
from ringfence.capability.form import KINDS, from_json, parse, to_json
from ringfence.capability.fs import FsHost, FsList, FsRead, FsWrite
from ringfence.capability.net import NetHttp
from ringfence.capability.process import ProcExec
from ringfence.capability.template import OneOf, Pattern, Template
from ringfence.operation import CodeRun as RunCode
from ringfence.operation import Language, brokered, needs

# --- the small universe --------------------------------------------------------------------------

PATHS = ("/workspace", "/workspace/inputs", "/workspace/inputs/a", "/workspace/work")
GLOBS = ((), ("/workspace/**/*.key",), ("/workspace/**/a*", "/workspace/**/*.key"))
HOSTS = ("*", "*.a.com", "a.com", "x.a.com", "1.2.3.4")
ENDPOINTS = ((None, None), (None, "http"), (None, "https"), (443, None), (80, "https"), (8080, None), (8080, "http"))
METHODS = (frozenset({"GET"}), frozenset({"POST"}), frozenset({"GET", "POST"}))
WEB_PATHS = (frozenset({"/v1/**"}), frozenset({"/v1/a", "/v2/**"}), frozenset({"/"}))
STATUS = Template((OneOf(frozenset({"status", "diff"})),))
ANY_WORD = Template((), Pattern("[a-z]+"))

SINGLE: tuple[Any, ...] = (
    *(
        kind(path, frozenset(only))
        for kind in (FsRead, FsWrite, FsList)
        for path, only in itertools.product(PATHS, GLOBS)
    ),
    *(NetHttp(host, port, scheme, methods) for host in HOSTS for port, scheme in ENDPOINTS for methods in METHODS),
    *(
        NetHttp(host, None, scheme, methods, web_paths)
        for host in ("*.a.com", "x.a.com")
        for scheme in (None, "https")
        for methods in METHODS[1:]
        for web_paths in WEB_PATHS
    ),
    *(
        BrowserUse(frozenset(scope))
        for size in range(1, len(VERBS) + 1)
        for scope in itertools.combinations(sorted(VERBS), size)
    ),
    *(
        ProcExec(tool, frozenset(templates))
        for tool in ("git", "ls")
        for templates in ((), (STATUS,), (ANY_WORD,), (STATUS, ANY_WORD))
    ),
    TmpUse(),
    *(SysGpu(name) for name in ("small", "large")),
    *(CodeRun(language) for language in Language),
    *(SecretUse(name) for name in ("KEY", "OTHER")),
    *(PortOpen(port) for port in (80, 8080)),
    *(FsHost(path) for path in ("/", "/opt", "/opt/tools", "/srv")),
)

OPERATIONS: tuple[Any, ...] = (
    *(
        kind(path)
        for kind in (
            brokered.FsRead,
            brokered.FsWrite,
            brokered.FsList,
            brokered.FsStat,
            brokered.FsMkdir,
            brokered.FsDelete,
        )
        for path in (
            *PATHS,
            "inputs/a/a.key",
            "inputs/a/b.key",
            "work/a.key",
            "work/x.key",
            "inputs/b",
            "../etc/passwd",
            "/etc/passwd",
        )
    ),
    *(
        brokered.NetHttp(method, f"{scheme}://{host}{port}/")
        for method in ("GET", "POST")
        for scheme in ("http", "https")
        for port in ("", ":80", ":443", ":8080")
        for host in ("a.com", "x.a.com", "y.x.a.com", "b.org", "1.2.3.4", "a.com.evil.test")
    ),
    *(
        brokered.NetHttp(method, f"{scheme}://{host}{path}")
        for method in ("GET", "POST")
        for scheme in ("http", "https")
        for host in ("x.a.com", "y.x.a.com")
        for path in (
            *("/v1", "/v1/", "/v1/a", "/v1/a?b=../c", "/v1/a/b", "/v2", "/v2/x", "/v10", "/v3"),
            *("/v1/../v2/x", "/v1/%2e%2e/v3", "//v1/a", "/v1//a", "/v1/a;b", "/v1/a%2fb"),
        )
    ),
    *(brokered.BrowserNav(url) for url in ("https://x.a.com/", "http://b.org:8080/")),
    brokered.BrowserExtract(),
    brokered.BrowserScreenshot(),
    brokered.BrowserClick("a"),
    brokered.BrowserType("input", "words"),
    brokered.BrowserClose(),
    *(
        brokered.ProcExec(tool, args)
        for tool in ("git", "ls", "sh")
        for args in ((), ("status",), ("push",), ("-f",), ("status", "x"))
    ),
    brokered.TmpAlloc(1),
    brokered.TmpFree("t"),
    *(RunCode(language, "") for language in Language),
    *(needs.SecretUse(name) for name in ("KEY", "OTHER", "THIRD")),
    *(needs.PortOpen(port) for port in (80, 8080, 9000)),
    *(needs.GpuUse(name) for name in ("small", "large")),
    *(needs.HostUse(path) for path in ("/etc", "/opt", "/opt/tools/x", "/srv/data", "relative", "/opt/../etc")),
)


@cache
def allowed(by: Any) -> frozenset[int]:
    return frozenset(at for at, operation in enumerate(OPERATIONS) if by.allows(operation))


def allowed_or_none(by: Any) -> frozenset[int]:
    return frozenset() if by is None else allowed(by)


def meet(one: Any, other: Any) -> Any:
    return None if one is None or other is None else one.meet(other)


BY_KIND = [[item for item in SINGLE if item.name == name] for name in dict.fromkeys(item.name for item in SINGLE)]
CHOICE: tuple[Any, ...] = (
    FsRead("/workspace"),
    FsRead("inputs"),
    FsWrite("inputs"),
    FsRead("**/*.key"),
    NetHttp("*", None, None, METHODS[0]),
    NetHttp("*.a.com", None, None, METHODS[2]),
    NetHttp("x.a.com", None, "https", METHODS[1]),
    NetHttp("x.a.com", 443, None, METHODS[0]),
    NetHttp("a.com", 8080, None, METHODS[2]),
    NetHttp("*.a.com", None, None, METHODS[1], WEB_PATHS[0]),
    NetHttp("x.a.com", None, "https", METHODS[2], WEB_PATHS[1]),
    BrowserUse(frozenset({"open"})),
    BrowserUse(frozenset({"open", "extract"})),
    ProcExec("git", frozenset({STATUS})),
    ProcExec("git"),
    CodeRun(Language.PYTHON),
    TmpUse(),
)
SETS = [Capabilities(chosen) for size in (0, 1, 2) for chosen in itertools.combinations(CHOICE, size)]


def test_the_universe_has_every_kind_and_every_capability_of_it_allows_something() -> None:
    assert {item.tag for item in SINGLE} == set(KINDS)
    assert [item for item in SINGLE if not allowed(item)] == []


def test_1_meeting_oneself_changes_nothing_in_all_of_the_universe() -> None:
    assert [item for item in SINGLE if item.meet(item) != item] == []
    assert [one for one in SETS if Capabilities(one).meet(Capabilities(list(one))) != one] == []


def test_1_it_does_not_matter_who_meets_whom_in_all_of_the_universe() -> None:
    assert [pair for pair in itertools.combinations(SINGLE, 2) if meet(*pair) != meet(*reversed(pair))] == []
    assert [pair for pair in itertools.combinations(SETS, 2) if meet(*pair) != meet(*reversed(pair))] == []


@pytest.mark.parametrize("kind", [kind if len(kind) < 40 else kind[::5] for kind in BY_KIND], ids=lambda k: k[0].name)
def test_1_it_does_not_matter_in_which_order_three_meet_in_all_of_the_universe(kind: list[Any]) -> None:
    wrong = [
        (one, two, three)
        for one, two, three in itertools.product(kind, repeat=3)
        if meet(meet(one, two), three) != meet(one, meet(two, three))
    ]
    assert wrong == []


def test_2_and_3_the_meet_allows_exactly_what_both_allow_in_all_of_the_universe() -> None:
    wrong = [
        pair
        for pair in itertools.product(SINGLE, repeat=2)
        if allowed_or_none(meet(*pair)) != allowed(pair[0]) & allowed(pair[1])
    ]
    assert wrong == []


def test_2_and_3_the_meet_of_sets_allows_exactly_what_both_allow_in_all_of_the_universe() -> None:
    wrong = [
        pair
        for pair in itertools.product(SETS, repeat=2)
        if allowed(meet(*pair)) != allowed(pair[0]) & allowed(pair[1])
    ]
    assert wrong == []


def test_a_set_allows_what_one_of_its_capabilities_allows_in_all_of_the_universe() -> None:
    pages = {at for at, operation in enumerate(OPERATIONS) if operation.kind == "browser_nav"}
    for one in SETS:
        assert allowed(one) - pages == frozenset().union(*map(allowed, one)) - pages


def test_4_three_attenuations_in_any_order_never_widen_and_end_in_the_same_place() -> None:
    for chain in itertools.combinations(SETS[::9], 3):
        steps = list(itertools.accumulate(chain, Capabilities.meet))
        assert allowed(steps[2]) <= allowed(steps[1]) <= allowed(steps[0])
        assert {reduce(Capabilities.meet, order) for order in itertools.permutations(chain)} == {steps[2]}


def test_5_one_normal_form_is_one_hash_in_all_of_the_universe() -> None:
    for one, other in itertools.combinations_with_replacement(SETS, 2):
        assert (one == other) == (one.digest() == other.digest()) == (one.to_json() == other.to_json())


def test_5_without_filters_one_meaning_is_one_normal_form() -> None:
    """Stronger than the law: hosts, endpoints, methods, verbs and directories say one thing in one way."""
    plain = [item for item in SINGLE if not getattr(item, "only", None) and not getattr(item, "templates", None)]
    nets = [item for item in plain if item.tag == "NetHttp"][::4]
    sets = [Capabilities(pair) for pair in itertools.combinations_with_replacement(nets, 2)]
    # with the net, because opening a page takes a verb and a host
    sets += [Capabilities([one, NetHttp("*", methods=METHODS[0])]) for one in plain if one.tag != "NetHttp"]
    by_meaning: dict[frozenset[int], set[Capabilities]] = {}
    for one in sets:
        by_meaning.setdefault(allowed(one), set()).add(one)
    assert [same for same in by_meaning.values() if len(same) > 1] == []


def test_every_capability_of_the_universe_comes_back_from_json_and_from_text() -> None:
    assert [item for item in SINGLE if from_json(to_json(item)) != item or parse(str(item)) != item] == []
    assert [one for one in SETS if read_capabilities(one.to_json()) != one] == []


# --- whatever Hypothesis thinks of ---------------------------------------------------------------

names = st.text("ab.*&% ", min_size=1, max_size=3).filter(lambda name: "*" not in name and name not in (".", "..", " "))
paths = st.lists(names, max_size=3).map(lambda parts: "/".join(("/workspace", *parts)))
host_paths = st.lists(st.sampled_from(["opt", "opt2", "tools", "a b"]), max_size=3).map(
    lambda parts: "/" + "/".join(parts)
)
globs = st.lists(st.sampled_from(["*", "**", "a", "b", "?", "*.key", "a*b*"]), min_size=1, max_size=4).map(
    lambda parts: "/".join(("/workspace", *parts))
)
hosts = st.lists(st.sampled_from(["a", "b", "com"]), min_size=1, max_size=4).map(".".join)
patterns = st.one_of(hosts, hosts.map(lambda host: f"*.{host}"), st.just("*"), st.just("10.0.0.1"), st.just("::1"))
methods = st.frozensets(st.sampled_from(["GET", "HEAD", "POST"]), min_size=1)
ports = st.one_of(st.none(), st.sampled_from([80, 443, 8080]))
schemes = st.sampled_from([None, "http", "https"])
web_places = st.lists(st.sampled_from(["a", "b", "v1"]), max_size=3).map(lambda parts: "/" + "/".join(parts))
web_paths = st.frozensets(
    st.one_of(web_places, web_places.map(lambda place: place.rstrip("/") + "/**"), st.just("/**")),
    min_size=1,
    max_size=3,
)
nets = st.builds(NetHttp, patterns, ports, schemes, methods, st.one_of(st.just(frozenset({"/**"})), web_paths))
matchers = st.one_of(
    st.frozensets(st.sampled_from(["status", "diff", "push"]), max_size=2).map(OneOf),
    st.sampled_from(["[a-z]+", "--?[a-z]{2,5}", "s.*"]).map(Pattern),
)
templates = st.builds(Template, st.lists(matchers, max_size=2).map(tuple), st.one_of(st.none(), matchers))
capabilities = st.one_of(
    st.builds(lambda kind, path, only: kind(path, only), st.sampled_from([FsRead, FsWrite, FsList]), paths,
              st.frozensets(globs, max_size=2)),
    st.builds(lambda kind, glob: kind(glob), st.sampled_from([FsRead, FsWrite, FsList]), globs),
    nets,
    st.builds(BrowserUse, st.frozensets(st.sampled_from(sorted(VERBS)))),
    st.builds(ProcExec, st.sampled_from(["git", "ls"]), st.frozensets(templates, max_size=2)),
    st.sampled_from([item for item in SINGLE if item.tag in ("TmpUse", "SysGpu", "CodeRun", "SecretUse", "PortOpen")]),
    st.builds(FsHost, host_paths),
    st.builds(PortOpen, st.integers(1, 65535) | st.sampled_from([80, 8080])),
    st.builds(SecretUse, st.sampled_from(["KEY", "KEY2", "key", "OTHER"])),
)  # fmt: skip
operations = st.one_of(
    st.builds(lambda kind, path: kind(path), st.sampled_from([brokered.FsRead, brokered.FsWrite, brokered.FsList]),
              st.one_of(paths, globs.map(lambda glob: glob.replace("**", "a").replace("*", "b").replace("?", "a")))),
    st.builds(lambda method, scheme, host, port, path: brokered.NetHttp(method, f"{scheme}://{host}{port}{path}"),
              st.sampled_from(["GET", "HEAD", "POST"]), st.sampled_from(["http", "https"]),
              st.one_of(hosts, st.just("10.0.0.1"), st.just("[::1]")), st.sampled_from(["", ":80", ":443", ":8080"]),
              st.one_of(web_places, st.sampled_from(["/a/../b", "/a//b", "/%61", "/a;b", "/a%2fb", "/a/./b"]))),
    hosts.map(lambda host: brokered.BrowserNav(f"https://{host}/")),
    st.builds(brokered.ProcExec, st.sampled_from(["git", "ls"]),
              st.lists(st.sampled_from(["status", "diff", "push", "-x", "--ab"]), max_size=3).map(tuple)),
    host_paths.map(needs.HostUse),
    st.builds(needs.PortOpen, st.integers(1, 65535) | st.sampled_from([80, 8080])),
    st.builds(needs.SecretUse, st.sampled_from(["KEY", "KEY2", "key", "OTHER"])),
    st.lists(st.sampled_from([80, 8080, 9000]), max_size=2).map(
        lambda ports: RunCode(Language.PYTHON, "", ports=tuple(ports))
    ),
    st.sampled_from(OPERATIONS),
)  # fmt: skip
reaching = st.one_of(
    st.one_of(hosts, hosts.map(lambda host: f"*.{host}")).map(needs.HostReach),
    st.lists(hosts, min_size=1, max_size=2).map(lambda hosts: RunCode(Language.PYTHON, "", domains=tuple(hosts))),
)
sets = st.lists(capabilities, max_size=5).map(Capabilities)


@given(sets, sets, operations)
def test_the_meet_of_any_two_sets_allows_exactly_what_both_allow(
    one: Capabilities, other: Capabilities, operation: Any
) -> None:
    assert one.meet(other).allows(operation) == (one.allows(operation) and other.allows(operation))


@given(sets, sets, reaching)
def test_code_reaches_no_host_that_not_both_let_it_reach(
    one: Capabilities, other: Capabilities, operation: Any
) -> None:
    # not "exactly": with a host that is for GET here and for POST there, nothing is left to reach it by
    assert not one.meet(other).allows(operation) or (one.allows(operation) and other.allows(operation))


@given(capabilities, capabilities, operations)
def test_the_meet_of_any_two_capabilities_allows_exactly_what_both_allow(one: Any, other: Any, operation: Any) -> None:
    met = one.meet(other)
    assert (met is not None and met.allows(operation)) == (one.allows(operation) and other.allows(operation))


@given(sets, sets, sets)
@settings(max_examples=60)
def test_any_sets_meet_in_any_order(one: Capabilities, two: Capabilities, three: Capabilities) -> None:
    assert one.meet(one) == one
    assert one.meet(two) == two.meet(one)
    assert one.meet(two).meet(three) == one.meet(two.meet(three))


@given(st.lists(sets, min_size=1, max_size=5), operations)
@settings(max_examples=60)
def test_no_chain_of_attenuations_ever_allows_more(chain: list[Capabilities], operation: Any) -> None:
    answers = [step.allows(operation) for step in itertools.accumulate(chain, Capabilities.meet)]
    assert answers == sorted(answers, reverse=True)


@given(st.lists(capabilities, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_writing_is_no_part_of_the_hash(items: list[Any], random: Any) -> None:
    shuffled = random.sample(items, len(items))
    one, other = Capabilities(items), Capabilities(shuffled + items[:1])
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest() == other.digest()


@given(sets, sets)
def test_two_sets_have_one_hash_exactly_when_they_have_one_normal_form(one: Capabilities, other: Capabilities) -> None:
    assert (one.digest() == other.digest()) == (one == other)


@given(sets, operations)
def test_the_normal_form_allows_what_was_written(one: Capabilities, operation: Any) -> None:
    demanded = operation.kind == "browser_nav"
    assert demanded or one.allows(operation) == any(item.allows(operation) for item in one)


@given(capabilities)
def test_every_capability_comes_back_from_json_and_from_text(item: Any) -> None:
    assert from_json(to_json(item)) == item
    assert parse(str(item)) == item


@given(st.lists(nets, min_size=9, max_size=25), operations)
@settings(max_examples=60)
def test_a_long_list_of_hosts_allows_what_one_of_them_allows(items: list[Any], operation: Any) -> None:
    assert Capabilities(items).allows(operation) == any(item.allows(operation) for item in items)
