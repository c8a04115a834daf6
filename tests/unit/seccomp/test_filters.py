"""The compiled programs answer exactly what the policy says, for every number, argument and architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringfence.isolation.linux.seccomp import policy
from ringfence.isolation.linux.seccomp.filters import base_filter, frugal_filter, init_filter, seal_filter
from ringfence.isolation.linux.seccomp.numbers import Machine, machine_named
from ringfence.isolation.linux.seccomp.simulator import Simulator
from ringfence.isolation.linux.seccomp.verdict import (
    ALLOW,
    ENOSYS,
    KILL_PROCESS,
    LOW_WORD,
    Branch,
    Decision,
    judge,
    strictest,
)

MACHINES = ("x86_64", "aarch64")
FILTERS: Mapping[str, tuple[Callable[[str], bytes], Callable[[Machine], Mapping[int, Decision]], int]] = {
    "base": (base_filter, policy.base_policy, ENOSYS),
    "seal": (seal_filter, policy.seal_policy, ALLOW),
    "frugal": (frugal_filter, policy.frugal_policy, ALLOW),
    "init": (init_filter, policy.init_policy, KILL_PROCESS),
}
NUMBERS = (*range(1101), 0x3FFFFFFF, 0x40000000, 0x40000001, 0x400001B9, 0x7FFFFFFF, 0x80000000, 0xBFFFFFFF, LOW_WORD)
FOREIGN = (0, 0x40000003, 0x40000028, 0x80000015, 0xC000003D, 0xC00000F3, 0x4000003E, LOW_WORD)
Call = tuple[int, int, tuple[int, ...]]


@cache
def loaded(name: str, machine: str) -> Simulator:
    return Simulator(FILTERS[name][0](machine))


@cache
def decisions(name: str, machine: str) -> Mapping[int, Decision]:
    return FILTERS[name][1](machine_named(machine))


@cache
def guest_decisions(machine: str) -> Mapping[int, Decision]:
    return policy.guest_policy(machine_named(machine))


def declared(table: Mapping[int, Decision], otherwise: int, machine: str, call: Call) -> int:
    """What the policy says, by looking it up."""
    number, arch, arguments = call
    known = machine_named(machine)
    if arch != known.audit_arch or number & known.second_abi_bit:
        return KILL_PROCESS
    return judge(table.get(number, otherwise), arguments)


def corner_values(decision: Decision) -> dict[int, set[int]]:
    """For each argument the values at which a decision changes, their neighbours, and each with high garbage."""
    found: dict[int, set[int]] = {}
    if isinstance(decision, Branch):
        here = found.setdefault(decision.argument, set())
        for values, then in decision.cases.items():
            here |= {(value + step) & LOW_WORD for value in values for step in (-1, 0, 1)}
            for argument, deeper in corner_values(then).items():
                found.setdefault(argument, set()).update(deeper)
        here |= {1 << bit for bit in range(32)} | {0, LOW_WORD, decision.mask, LOW_WORD ^ decision.mask}
    return found


def corner_calls(table: Mapping[int, Decision], arch: int) -> Iterator[Call]:
    for number in NUMBERS:
        corners = corner_values(table[number]) if number in table else {}
        for values in product(*(sorted(corners.get(argument, {0})) for argument in range(6))):
            yield number, arch, values
            yield number, arch, tuple(value | 0xFFFFFFFF << 32 for value in values)
            yield number, arch, tuple(value | 1 << 32 for value in values)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_answers_what_its_policy_says_and_every_instruction_is_needed(name: str, machine: str) -> None:
    program, table, otherwise = loaded(name, machine), decisions(name, machine), FILTERS[name][2]
    native = machine_named(machine).audit_arch
    calls = [*corner_calls(table, native), *((number, arch, (0,) * 6) for number in NUMBERS for arch in FOREIGN)]
    assert [call for call in calls if program.verdict(*call) != declared(table, otherwise, machine, call)] == []
    assert program.executed == set(range(len(program)))


@pytest.mark.parametrize("machine", MACHINES)
def test_base_and_seal_together_are_exactly_the_guest_policy(machine: str) -> None:
    base, seal, table = loaded("base", machine), loaded("seal", machine), guest_decisions(machine)
    native = machine_named(machine).audit_arch
    calls = [*corner_calls(table, native), *((number, arch, (0,) * 6) for number in NUMBERS for arch in FOREIGN)]
    wrong = [
        call
        for call in calls
        if strictest(base.verdict(*call), seal.verdict(*call)) != declared(table, ENOSYS, machine, call)
    ]
    assert wrong == []


words = st.integers(0, LOW_WORD)
longs = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 600), st.integers(0, 300).map(lambda low: low | 1 << 32))
any_arch = st.one_of(st.sampled_from([machine_named(name).audit_arch for name in MACHINES]), words)
any_call = st.tuples(st.one_of(st.integers(0, 600), words), any_arch, st.tuples(*[longs] * 6))


@given(st.sampled_from(MACHINES), any_call)
@example("x86_64", (0x40000000 | 165, 0xC000003E, (0,) * 6))
@example("x86_64", (11, 0x40000003, (0,) * 6))
def test_no_call_at_all_is_judged_differently_from_the_policy(machine: str, call: Call) -> None:
    for name, (_, _, otherwise) in FILTERS.items():
        assert loaded(name, machine).verdict(*call) == declared(decisions(name, machine), otherwise, machine, call)
    combined = strictest(loaded("base", machine).verdict(*call), loaded("seal", machine).verdict(*call))
    assert combined == declared(guest_decisions(machine), ENOSYS, machine, call)


@pytest.mark.parametrize("machine", MACHINES)
def test_whatever_is_always_allowed_is_found_without_looking_at_arguments(machine: str) -> None:
    """The kernel remembers such calls and does not run the filter for them at all."""
    table, native = decisions("base", machine), machine_named(machine).audit_arch
    unconditional = [number for number, decision in table.items() if decision == ALLOW]
    steps = []
    for number in unconditional:
        program = Simulator(base_filter(machine))
        assert program.verdict(number, native, (0,) * 6) == ALLOW
        steps.append(len(program.executed))
    # Two loads, two checks, one verdict, and a search that halves what is left.
    assert max(steps) <= 5 + 9
