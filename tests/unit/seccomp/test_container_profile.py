"""The profile for container engines lets through what our own filters let through, by libseccomp's own program."""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from typing import Any

import pyseccomp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.seccomp.test_libseccomp_agrees import (
    ARCHES,
    NO_ARGUMENTS,
    compared_numbers,
    corners,
    exported,
    known_to_libseccomp,
    libseccomp_filter,
    nested,
)

from ringfence.isolation.linux.seccomp.arguments import GUEST_RULES
from ringfence.isolation.linux.seccomp.container import PROFILE, container_profile, profile_text
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.seccomp.policy import guest_policy
from ringfence.isolation.linux.seccomp.simulator import Simulator
from ringfence.isolation.linux.seccomp.verdict import ALLOW, ENOSYS, EPERM, KILL_PROCESS, judge, refuse

WORD = st.integers(0, 2**64 - 1)


@cache
def program(machine: str) -> Simulator:
    """Compile the shipped profile as runc does, with libseccomp, for one machine."""
    shipped = json.loads(PROFILE.read_text())
    default = verdict_of(shipped["defaultAction"], shipped["defaultErrnoRet"])
    built, known = libseccomp_filter(machine, default), known_to_libseccomp(machine)
    for entry in shipped["syscalls"]:
        verdict = verdict_of(entry["action"], entry.get("errnoRet"))
        tests = [condition(test) for test in entry.get("args", [])]
        for name in entry["names"]:
            if verdict != default and name in known:
                built.add_rule(verdict, name, *tests)
    return exported(built)


def verdict_of(action: str, error: int | None) -> int:
    if action == "SCMP_ACT_ALLOW":
        return ALLOW
    assert action == "SCMP_ACT_ERRNO"
    assert error is not None
    return refuse(error)


def condition(test: dict[str, Any]) -> pyseccomp.Arg:
    assert test["op"] == "SCMP_CMP_MASKED_EQ"
    return pyseccomp.Arg(test["index"], pyseccomp.MASKED_EQ, test["value"], test["valueTwo"])


def test_the_shipped_file_is_what_the_generator_writes() -> None:
    assert PROFILE.read_text() == profile_text()
    assert json.loads(profile_text()) == container_profile()


def test_everything_unnamed_is_refused_with_eperm_on_both_machines() -> None:
    profile = container_profile()
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    assert profile["architectures"] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]


def test_looking_into_other_processes_is_refused_by_name() -> None:
    refused = {
        name for entry in container_profile()["syscalls"] if entry.get("errnoRet") == 1 for name in entry["names"]
    }
    assert {"ptrace", "process_vm_readv", "process_vm_writev"} <= refused


@pytest.mark.parametrize("machine", ARCHES)
def test_every_number_passes_or_fails_as_in_a_box_of_ours(machine: str) -> None:
    native, policy = machine_named(machine), guest_policy(machine_named(machine))
    wrong = []
    for number in compared_numbers(machine, GUEST_RULES):
        got = program(machine).verdict(number, native.audit_arch, NO_ARGUMENTS)
        ours = policy.get(number, ENOSYS) if number < 0x40000000 else KILL_PROCESS
        # A call without a name has no entry, so it is refused as every other: EPERM where we say ENOSYS.
        expected = EPERM if number not in policy and number < 0x40000000 else ours
        if machine == "aarch64" and number >= 0x40000000:
            expected = EPERM
        if got != expected:
            wrong.append((number, hex(got)))
    assert wrong == []


@pytest.mark.parametrize(("machine", "name"), list(product(ARCHES, GUEST_RULES)))
def test_arguments_pass_or_fail_as_in_a_box_of_ours(machine: str, name: str) -> None:
    native = machine_named(machine)
    if name not in native.numbers:
        assert name == "mknod"  # aarch64 has the newer call only
        return
    wrong, asked = [], 0
    for branch, path in nested(GUEST_RULES[name], {}):
        for value in corners(branch):
            call = tuple({**path, branch.argument: value}.get(argument, 0) for argument in range(6))
            asked += 1
            if (got := program(machine).verdict(native.numbers[name], native.audit_arch, call)) != passes(name, call):
                wrong.append((call, hex(got)))
    assert wrong == []
    assert asked >= 90


@given(name=st.sampled_from(sorted(GUEST_RULES)), call=st.tuples(*(WORD,) * 6))
def test_any_arguments_pass_or_fail_as_in_a_box_of_ours(name: str, call: tuple[int, ...]) -> None:
    native = machine_named("x86_64")
    assert program("x86_64").verdict(native.numbers[name], native.audit_arch, call) == passes(name, call)


def passes(name: str, call: tuple[int, ...]) -> int:
    return ALLOW if judge(GUEST_RULES[name], call) == ALLOW else EPERM
