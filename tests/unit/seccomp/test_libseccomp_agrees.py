"""An oracle that shares no code with us: libseccomp compiles the same policy from its own numbers.

The numbers, the search and the argument comparisons of our filters must all agree with it. libseccomp knows fewer
calls than we do; the newer numbers are held by the tables in `test_filters` alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import product

import pyseccomp
import pytest

from ringfence.isolation.linux.seccomp import arguments, policy
from ringfence.isolation.linux.seccomp.filters import base_filter, init_filter, seal_filter
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.seccomp.simulator import Simulator
from ringfence.isolation.linux.seccomp.verdict import ALLOW, ENOSYS, EPERM, KILL_PROCESS, LOW_WORD, Branch, strictest

ARCHES = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}
NO_ARGUMENTS = (0,) * 6
# For x32 libseccomp kills from 0x40000000 on but for -1, we where that bit is set. The two differ on numbers that no
# kernel has, such as 0x80000000 and -1, which are therefore not asked here.
NUMBERS = (*range(1101), 0x40000000, 0x400000A5, 0x40000200, 0x7FFFFFFF, 0xC0000000, 0xFFFFFFFE)
FOREIGN = (0x40000003, 0x40000028, 0xC00000F3, 0)


def known_to_libseccomp(machine: str) -> dict[str, int]:
    resolved = {name: pyseccomp.resolve_syscall(ARCHES[machine], name) for name in machine_named(machine).numbers}
    return {name: number for name, number in resolved.items() if number >= 0}


def libseccomp_filter(machine: str, default: int) -> pyseccomp.SyscallFilter:
    built = pyseccomp.SyscallFilter(default)
    built.set_attr(pyseccomp.Attr.ACT_BADARCH, KILL_PROCESS)
    if not built.exist_arch(ARCHES[machine]):
        built.add_arch(ARCHES[machine])
    for other in set(ARCHES.values()) - {ARCHES[machine]}:
        if built.exist_arch(other):
            built.remove_arch(other)
    return built


def exported(built: pyseccomp.SyscallFilter) -> Simulator:
    with os.fdopen(os.memfd_create("oracle", os.MFD_CLOEXEC), "rb") as file:
        built.export_bpf(file)
        file.seek(0)
        return Simulator(file.read())


def by_name(machine: str, default: int, answers: Mapping[int, Mapping[str, str]]) -> Simulator:
    built, known = libseccomp_filter(machine, default), known_to_libseccomp(machine)
    for verdict, groups in answers.items():
        for name in policy.names_in(groups):
            if verdict != default and name in known:
                built.add_rule(verdict, name)
    return exported(built)


def compared_numbers(machine: str, rules: Mapping[str, Branch]) -> list[int]:
    """All numbers but those that libseccomp is too old for, and those whose answer depends on arguments."""
    ours, known = machine_named(machine).numbers, known_to_libseccomp(machine)
    left_out = {number for name, number in ours.items() if name not in known or name in rules}
    return [number for number in NUMBERS if number not in left_out]


def disagreements(machine: str, numbers: list[int], ours: list[Simulator], oracle: Simulator) -> list[tuple[int, int]]:
    found = []
    for arch, number in product((machine_named(machine).audit_arch, *FOREIGN), numbers):
        verdict = ALLOW
        for program in ours:
            verdict = strictest(verdict, program.verdict(number, arch, NO_ARGUMENTS))
        if verdict != oracle.verdict(number, arch, NO_ARGUMENTS):
            found.append((arch, number))
    return found


@pytest.mark.parametrize("machine", ARCHES)
def test_libseccomp_gives_our_names_the_same_numbers(machine: str) -> None:
    known, ours = known_to_libseccomp(machine), machine_named(machine).numbers
    assert known == {name: ours[name] for name in known}
    assert len(known) > 300 - 50 * (machine == "aarch64")


@pytest.mark.parametrize("machine", ARCHES)
def test_libseccomp_judges_every_number_for_the_guest_as_base_and_seal_do(machine: str) -> None:
    answers = {ALLOW: policy.ALLOWED, EPERM: {**policy.SETUP, **policy.REFUSED}, ENOSYS: policy.ABSENT}
    ours = [Simulator(base_filter(machine)), Simulator(seal_filter(machine))]
    oracle = by_name(machine, ENOSYS, answers)
    assert disagreements(machine, compared_numbers(machine, arguments.GUEST_RULES), ours, oracle) == []


@pytest.mark.parametrize("machine", ARCHES)
def test_libseccomp_judges_every_number_before_the_seal_as_base_does(machine: str) -> None:
    answers = {ALLOW: {**policy.ALLOWED, **policy.SETUP}, EPERM: policy.REFUSED, ENOSYS: policy.ABSENT}
    oracle = by_name(machine, ENOSYS, answers)
    numbers = compared_numbers(machine, arguments.GUEST_RULES)
    assert disagreements(machine, numbers, [Simulator(base_filter(machine))], oracle) == []


@pytest.mark.parametrize("machine", ARCHES)
def test_libseccomp_judges_every_number_for_init_as_we_do(machine: str) -> None:
    oracle = by_name(machine, KILL_PROCESS, {ALLOW: policy.INIT_ALLOWED})
    numbers = compared_numbers(machine, arguments.INIT_RULES)
    assert disagreements(machine, numbers, [Simulator(init_filter(machine))], oracle) == []


def nested(branch: Branch, path: dict[int, int]) -> Iterator[tuple[Branch, dict[int, int]]]:
    """Yield every branch of a rule with arguments that lead to it."""
    yield branch, path
    for values, then in branch.cases.items():
        if isinstance(then, Branch):
            for value in values:
                yield from nested(then, {**path, branch.argument: value})


def libseccomp_branch(machine: str, name: str, branch: Branch) -> Simulator:
    built = libseccomp_filter(machine, branch.otherwise)
    for values, then in branch.cases.items():
        for value in values:
            if isinstance(then, int) and then != branch.otherwise:
                condition = pyseccomp.Arg(branch.argument, pyseccomp.MASKED_EQ, branch.mask, value)
                built.add_rule_exactly(then, name, condition)
    return exported(built)


def corners(branch: Branch) -> Iterator[int]:
    """Yield values around every case that ends here, each also with garbage in the half that must not count."""
    deeper = {value for values, then in branch.cases.items() if isinstance(then, Branch) for value in values}
    cases = {value for values in branch.cases for value in values}
    low = {value + step for value in cases for step in (-1, 0, 1)} | {1 << bit for bit in range(32)} | {LOW_WORD}
    low |= {value | LOW_WORD ^ branch.mask for value in cases}
    for value in low:
        if value & LOW_WORD & branch.mask not in deeper:
            yield from (value & LOW_WORD, value & LOW_WORD | 1 << 32, value & LOW_WORD | LOW_WORD << 32)


RULES = [(base_filter, name, rule) for name, rule in arguments.GUEST_RULES.items()] + [
    (init_filter, name, rule) for name, rule in arguments.INIT_RULES.items()
]


@pytest.mark.parametrize(("build", "name", "rule"), RULES, ids=[f"{build.__name__}-{name}" for build, name, _ in RULES])
def test_libseccomp_compares_arguments_as_we_do(build: object, name: str, rule: Branch) -> None:
    assert callable(build)
    machine = "x86_64"
    ours, native = Simulator(build(machine)), machine_named(machine)
    number, wrong, asked = native.numbers[name], [], 0
    for branch, path in nested(rule, {}):
        oracle = libseccomp_branch(machine, name, branch)
        for value in corners(branch):
            call = tuple({**path, branch.argument: value}.get(argument, 0) for argument in range(6))
            asked += 1
            if ours.verdict(number, native.audit_arch, call) != oracle.verdict(number, native.audit_arch, call):
                wrong.append(call)
    assert wrong == []
    assert asked >= 90
