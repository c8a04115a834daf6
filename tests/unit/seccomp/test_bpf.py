"""The assembler: any table of decisions, however far its jumps, compiles to a program that says the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.native.seccomp import bpf
from ringfence.isolation.native.seccomp.numbers import machine_named
from ringfence.isolation.native.seccomp.simulator import InvalidProgram, Simulator
from ringfence.isolation.native.seccomp.verdict import ALLOW, ENOSYS, EPERM, LOW_WORD, Branch, Decision, judge

MACHINE = machine_named("aarch64")
words = st.integers(0, LOW_WORD)
verdicts = st.sampled_from([ALLOW, EPERM, ENOSYS])


def branches(inner: st.SearchStrategy[Decision]) -> st.SearchStrategy[Decision]:
    cases = st.dictionaries(st.integers(0, 40).map(lambda value: (value,)), inner, max_size=6)
    masks = st.sampled_from([LOW_WORD, 0xF, 0x7E020000])
    return st.builds(Branch, st.integers(0, 5), cases, verdicts, masks)


tables = st.dictionaries(st.one_of(st.integers(0, 80), words), st.recursive(verdicts, branches, max_leaves=6))


@given(tables, verdicts, st.one_of(st.integers(0, 80), words), st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_a_compiled_table_is_the_table(
    table: dict[int, Decision], otherwise: int, number: int, arguments: tuple[int, ...]
) -> None:
    program = Simulator(bpf.compile_filter(MACHINE, table, otherwise))
    for candidate in (number, *table):
        expected = judge(table.get(candidate, otherwise), arguments)
        assert program.verdict(candidate, MACHINE.audit_arch, arguments) == expected


def test_jumps_longer_than_a_branch_can_hold_still_arrive() -> None:
    far: dict[int, Decision] = {
        number: Branch(0, {tuple(range(0, 40, 2)): ALLOW}, EPERM, mask=0xFF ^ number) for number in range(0, 80, 2)
    }
    packed = bpf.compile_filter(MACHINE, far, ENOSYS)
    program = Simulator(packed)
    assert any(operation == bpf.JUMP for operation, *_ in bpf.unpack(packed))
    for number in range(90):
        for value in range(50):
            arguments = (value, 0, 0, 0, 0, 0)
            expected = judge(far.get(number, ENOSYS), arguments)
            assert program.verdict(number, MACHINE.audit_arch, arguments) == expected


def test_a_program_that_the_kernel_would_not_take_is_not_built() -> None:
    with pytest.raises(ValueError, match="instructions"):
        bpf.compile_filter(MACHINE, dict.fromkeys(range(0, 20_000, 2), EPERM), ALLOW)


@pytest.mark.parametrize(
    "instructions",
    [
        [],
        [(bpf.JUMP, 0, 0, 1), (bpf.RETURN, 0, 0, 0)],
        [(bpf.JUMP_EQUAL, 1, 0, 0), (bpf.RETURN, 0, 0, 0)],
        [(bpf.LOAD_WORD, 0, 0, 64), (bpf.RETURN, 0, 0, 0)],
        [(bpf.LOAD_WORD, 0, 0, 2), (bpf.RETURN, 0, 0, 0)],
        [(0x28, 0, 0, 0), (bpf.RETURN, 0, 0, 0)],
        [(bpf.LOAD_WORD, 0, 0, 0)],
    ],
)
def test_the_simulator_refuses_what_the_kernel_would(instructions: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(InvalidProgram):
        Simulator(b"".join(bpf.INSTRUCTION.pack(*instruction) for instruction in instructions))
