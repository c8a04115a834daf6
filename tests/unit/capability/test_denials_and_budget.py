"""Deny lists only grow when they meet, budgets only shrink, and neither can be dodged by another spelling."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.budget import KINDS, UNLIMITED, Budget, read_budget
from ringfence.capability.denials import NO_DENIALS, PRIVATE_NETWORKS, Denials, read_denials
from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun, Language
from ringfence.operation import brokered as op

denials = st.builds(
    Denials,
    paths=st.frozensets(st.sampled_from([".env", "**/*.key", "work/secret"])),
    domains=st.frozensets(st.sampled_from(["*.internal.*", "localhost", "10.*"])),
    networks=st.frozensets(st.sampled_from(["10.0.0.0/8", "fc00::/7", "8.8.8.0/24"])),
    ports=st.frozensets(st.sampled_from([22, 6379])),
    commands=st.frozensets(st.sampled_from(["rm -rf", "curl"])),
)
operations: list[Any] = [
    *(op.FsRead(path) for path in (".env", "a/b.key", "work/secret/x", "work/fine", "../x")),
    *(op.NetHttp("GET", url) for url in ("http://localhost/", "http://a.internal.b/", "http://10.1.1.1/", "http://x.com:22/",
                                         "http://[fc00::1]/", "http://8.8.8.8/", "https://fine.com/")),
    *(op.ProcExec(tool, args) for tool, args in (("rm", ("-r", "-f", "x")), ("rm", ("x",)), ("curl", ()), ("ls", ()))),
    CodeRun(Language.PYTHON, ""),
]  # fmt: skip


@given(denials, denials, st.sampled_from(operations))
def test_the_meet_denies_exactly_what_either_denies(one: Denials, other: Denials, operation: Any) -> None:
    met = one.meet(other).refusal(operation) is not None
    assert met == (one.refusal(operation) is not None or other.refusal(operation) is not None)


@given(denials, denials, denials)
def test_denials_meet_in_any_order(one: Denials, two: Denials, three: Denials) -> None:
    assert one.meet(one) == one == one.meet(NO_DENIALS)
    assert one.meet(two) == two.meet(one)
    assert one.meet(two).meet(three) == one.meet(two.meet(three))
    assert (one.digest() == two.digest()) == (one == two)
    assert read_denials(one.to_json()) == one


@pytest.mark.parametrize(
    ("address", "denied"),
    [
        ("127.0.0.1", True),
        ("10.9.9.9", True),
        ("172.31.255.255", True),
        ("192.168.0.1", True),
        ("169.254.169.254", True),
        ("100.64.0.1", True),
        ("0.0.0.0", True),
        ("224.0.0.1", True),
        ("::1", True),
        ("::ffff:10.0.0.1", True),
        ("::ffff:a9fe:a9fe", True),
        ("fe80::1", True),
        ("fd00::1", True),
        ("64:ff9b::7f00:1", True),
        ("8.8.8.8", False),
        ("172.32.0.1", False),
        ("2606:4700::1111", False),
        ("::ffff:8.8.8.8", False),
    ],
)
def test_private_addresses_in_every_disguise(address: str, denied: bool) -> None:
    assert Denials(networks=PRIVATE_NETWORKS).denies_address(address) is denied


@pytest.mark.parametrize(
    ("tool", "args", "denied"),
    [
        ("rm", ("-rf", "/"), True),
        ("rm", ("-fr", "/"), True),
        ("rm", ("-r", "-v", "-f", "x"), True),
        ("rm", ("-r", "x"), False),
        ("rm", ("x",), False),
        ("sudo", ("ls",), True),
        ("sudoku", (), False),
    ],
)
def test_a_denied_command_is_denied_however_its_flags_are_written(
    tool: str, args: tuple[str, ...], denied: bool
) -> None:
    assert Denials(commands=frozenset({"rm  -rf", "sudo"})).denies_command(tool, args) is denied


@pytest.mark.parametrize(
    "fields",
    [
        {"paths": ["../x"]},
        {"networks": ["10.0.0.1/8"]},
        {"networks": ["x"]},
        {"ports": [0]},
        {"ports": ["22"]},
        {"paths": [".env{,.local}"]},
        {"paths": ["work/.en[v]"]},
        {"changes": [".git/{a,b}"]},
        {"commands": [" "]},
        {"commands": ["curl *"]},
        {"commands": ["curl | sh"]},
        {"commands": ["'curl'"]},
        {"commands": ["/usr/bin/curl"]},
        {"domains": [""]},
        {"domains": ["https://evil.com"]},
        {"domains": ["evil.com:8080"]},
        {"domains": ["abc.de:80"]},
        {"domains": ["evil.com/a"]},
        {"domains": ["{a,b}.com"]},
        {"domains": ["evil.com other.com"]},
        {"domains": ["10.0.0.0/8"]},
        {"hosts": []},
        {"paths": "x"},
        {"domains": ["b\u00fccher"]},
        [],
    ],
    ids=str,
)
def test_a_denial_that_denies_nothing_for_sure_is_refused(fields: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_denials(fields)


amounts: Any = st.one_of(st.none(), st.just(UNLIMITED), st.integers(0, 5))
budgets = st.builds(Budget, **dict.fromkeys(KINDS, amounts))


@given(budgets, budgets, budgets)
def test_budgets_meet_in_any_order(one: Budget, two: Budget, three: Budget) -> None:
    assert one.meet(one) == one == one.meet(Budget())
    assert one.meet(two) == two.meet(one)
    assert one.meet(two).meet(three) == one.meet(two.meet(three))
    assert read_budget(one.to_json()) == one
    assert one.meet(two).exceeding(one) == () == one.meet(two).exceeding(two)


def test_all_cases_of_two_amounts() -> None:
    amounts: list[Any] = [None, 0, 1, UNLIMITED]
    met = {
        (one, other): Budget(calls=one).meet(Budget(calls=other)).calls
        for one, other in itertools.combinations_with_replacement(amounts, 2)
    }
    assert met == {
        (None, None): None, (None, 0): 0, (None, 1): 1, (None, UNLIMITED): UNLIMITED,
        (0, 0): 0, (0, 1): 0, (0, UNLIMITED): 0, (1, 1): 1, (1, UNLIMITED): 1, (UNLIMITED, UNLIMITED): UNLIMITED,
    }  # fmt: skip


def test_where_nobody_is_left_to_inherit_from_absent_is_none() -> None:
    closed = Budget(calls=3, cpu_ms=UNLIMITED).closed()
    assert (closed.calls, closed.cpu_ms, closed.bytes_in) == (3, UNLIMITED, 0)


def test_asking_for_unlimited_exceeds_any_number() -> None:
    assert Budget(calls=UNLIMITED, cpu_ms=1).exceeding(Budget(calls=5, cpu_ms=1)) == ("calls",)
    assert Budget().exceeding(Budget(calls=0)) == ()


@pytest.mark.parametrize(
    "form",
    [
        [],
        {"money": 1},
        {"calls": -1},
        {"calls": 1.5},
        {"calls": True},
        {"calls": "lots"},
        {"calls": None},
        {"calls": 2**53 + 1},
    ],
    ids=str,
)
def test_what_is_no_budget_is_refused(form: Any) -> None:
    with pytest.raises(InvalidRequest):
        read_budget(form)


@pytest.mark.parametrize(
    ("glob", "path", "denied"),
    [
        (".env", "work/.env", True),
        ("/workspace/.env", "code/.ENV", True),
        ("/workspace/work/Key?.pem", "work/keyß.pem", True),  # which is two letters when its case is folded
        ("/workspace/work/KEY?.pem", "work/keyİ.pem", True),
        ("/workspace/work/straße", "work/STRASSE", True),
        ("/workspace/work/key?.pem", "work/keyss.pem", False),
        ("/workspace/.env", "inputs/.env", True),
        ("/workspace/.env", "/output/.env", True),
        ("/workspace/.env", "tmp/a/.env", True),
        ("/workspace/*.key", "work/a.key", True),
        ("/workspace/secret/**", "work/secret/a", True),
        ("/workspace/.env", "work/a/.env", False),
        ("/workspace/work/.env", "inputs/work/.env", False),
        ("/workspace/wor?/a", "inputs/work/a", False),
    ],
)
def test_what_is_denied_where_no_file_can_lie_is_denied_in_every_part(glob: str, path: str, denied: bool) -> None:
    assert (Denials(paths=frozenset({glob})).refusal(op.FsRead(path)) is not None) is denied


def test_what_is_denied_at_the_root_is_not_brought_back_by_a_snapshot() -> None:
    assert Denials(paths=frozenset({"/workspace/.env"})).denied_writes([".env", "a", "b/.env"]) == (".env",)
