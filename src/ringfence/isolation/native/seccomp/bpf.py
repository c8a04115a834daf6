"""Compile a table of decisions about system calls into classic BPF that is cheap to load.

Linux runs a new filter once for every number it knows, to remember which are always allowed; a list of 300
comparisons makes that a millisecond. Here every number is found by binary search over ranges of equal decisions.

Code is written from its end to its beginning, so that a jump, which can only go forward, always has a known target.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ringfence.isolation.native.seccomp.numbers import Machine
from ringfence.isolation.native.seccomp.verdict import KILL_PROCESS, LOW_WORD, Decision

LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP = 0x05  # BPF_JMP | BPF_JA
JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_GREATER_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JUMP_BITS = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN = 0x06  # BPF_RET | BPF_K

INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter
MOST_INSTRUCTIONS = 4096  # BPF_MAXINSNS

NUMBER_OFFSET = 0  # into struct seccomp_data
ARCH_OFFSET = 4
_ARGUMENTS_OFFSET = 16
_LONGEST_BRANCH = 255


def compile_filter(machine: Machine, decisions: Mapping[int, Decision], otherwise: int) -> bytes:
    """Return the `struct sock_filter` array that gives a number its decision, and `otherwise` to the rest.

    Calls of a foreign architecture or of the machine's second ABI end the process: their numbers mean other calls.
    """
    code = _Code()
    search = code.search(_ranges(decisions, otherwise))
    if machine.second_abi_bit:
        search = code.branch(JUMP_BITS, machine.second_abi_bit, code.verdict(KILL_PROCESS), search)
    code.land(search)
    code.append(LOAD_WORD, NUMBER_OFFSET)
    number = code.here
    code.land(code.branch(JUMP_EQUAL, machine.audit_arch, number, code.verdict(KILL_PROCESS)))
    code.append(LOAD_WORD, ARCH_OFFSET)
    return code.packed()


_Range: TypeAlias = tuple[int, Decision]


def _ranges(decisions: Mapping[int, Decision], otherwise: int) -> list[_Range]:
    """Return (first value, decision) of each run of equal decisions, covering all 32-bit values."""
    ranges: list[_Range] = [(0, otherwise)]

    def put(first: int, decision: Decision) -> None:
        if ranges[-1][0] == first:
            ranges.pop()
        if not ranges or ranges[-1][1] != decision:
            ranges.append((first, decision))

    for number in sorted(decisions):
        put(number, decisions[number])
        if number < LOW_WORD and number + 1 not in decisions:
            put(number + 1, otherwise)
    return ranges


class _Code:
    """Instructions in reverse order; a position counts from the end of the program."""

    def __init__(self) -> None:
        self._reversed: list[tuple[int, int, int, int]] = []
        self._verdicts: dict[int, int] = {}

    @property
    def here(self) -> int:
        return len(self._reversed)

    def append(self, operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> None:
        self._reversed.append((operation, if_true, if_false, operand))

    def packed(self) -> bytes:
        if self.here > MOST_INSTRUCTIONS:
            raise ValueError(f"{self.here} instructions; the kernel takes {MOST_INSTRUCTIONS}")
        return b"".join(INSTRUCTION.pack(*instruction) for instruction in reversed(self._reversed))

    def search(self, ranges: Sequence[_Range]) -> int:
        """Return the position of code that finds the value in the accumulator among `ranges`."""
        if len(ranges) == 1:
            return self._decision(ranges[0][1])
        if len(ranges) == 3 and ranges[0][1] == ranges[2][1] and ranges[1][0] + 1 == ranges[2][0]:
            only = ranges[1]
            return self.branch(JUMP_EQUAL, only[0], self._decision(only[1]), self._decision(ranges[0][1]))
        middle = len(ranges) // 2
        upper = self.search(ranges[middle:])
        lower = self.search(ranges[:middle])
        return self.branch(JUMP_GREATER_EQUAL, ranges[middle][0], upper, lower)

    def verdict(self, verdict: int) -> int:
        """Return the position of a `RETURN` of `verdict` that a branch written soon can reach."""
        near = self._verdicts.get(verdict)
        # Half the reach is kept for what is written before the branch itself.
        if near is None or self.here - near > _LONGEST_BRANCH // 2:
            self.append(RETURN, verdict)
            self._verdicts[verdict] = near = self.here
        return near

    def branch(self, operation: int, operand: int, if_true: int, if_false: int) -> int:
        """Return the position of a conditional jump to one of two positions, however far."""
        if_false = self._within_reach(if_false)
        if_true = self._within_reach(if_true)
        self.append(operation, operand, self.here - if_true, self.here - if_false)
        return self.here

    def land(self, position: int) -> None:
        """Make the next instruction written fall through to `position`."""
        if position != self.here:
            self.append(JUMP, self.here - position)

    def _within_reach(self, position: int) -> int:
        # One less: making the other target reachable may still put an instruction in between.
        if self.here - position <= _LONGEST_BRANCH - 1:
            return position
        self.append(JUMP, self.here - position)
        return self.here

    def _decision(self, decision: Decision) -> int:
        if isinstance(decision, int):
            return self.verdict(decision)
        by_value = {value: then for values, then in decision.cases.items() for value in values}
        self.land(self.search(_ranges(by_value, decision.otherwise)))
        if decision.mask != LOW_WORD:
            self.append(AND, decision.mask)
        # Both machines are little-endian: the low half of an argument comes first.
        self.append(LOAD_WORD, _ARGUMENTS_OFFSET + 8 * decision.argument)
        return self.here


def unpack(program: bytes) -> Iterable[tuple[int, int, int, int]]:
    """Yield (operation, jump if true, jump if false, operand) of each instruction."""
    return INSTRUCTION.iter_unpack(program)
