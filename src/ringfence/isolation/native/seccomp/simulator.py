"""Runs a seccomp program the way the kernel would, so that tests can ask it about calls nobody dares to make."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ringfence.isolation.native.seccomp import bpf

_DATA = struct.Struct("=IIQ6Q")  # struct seccomp_data
_WORD = 0xFFFFFFFF


class InvalidProgram(Exception):
    """The kernel would not have accepted this program."""


class Simulator:
    """One loaded program; remembers which instructions have run."""

    # Other compilers write this one; ours has no use for it.
    _JUMP_GREATER = 0x25  # BPF_JMP | BPF_JGT | BPF_K

    def __init__(self, program: bytes) -> None:
        """Accept `program` if the kernel's checker would."""
        self._instructions = list(bpf.unpack(program))
        self.executed: set[int] = set()
        if not 0 < len(self._instructions) <= bpf.MOST_INSTRUCTIONS:
            raise InvalidProgram(f"{len(self._instructions)} instructions")
        for position, (operation, if_true, if_false, operand) in enumerate(self._instructions):
            self._check(position, operation, if_true, if_false, operand)
        if self._instructions[-1][0] != bpf.RETURN:
            raise InvalidProgram("does not end with a verdict")

    def __len__(self) -> int:
        """Return the number of instructions."""
        return len(self._instructions)

    def verdict(self, number: int, arch: int, arguments: Sequence[int], instruction_pointer: int = 0) -> int:
        """Return what the program answers about one call."""
        data = _DATA.pack(number, arch, instruction_pointer, *arguments)
        accumulator = position = 0
        while True:
            self.executed.add(position)
            operation, if_true, if_false, operand = self._instructions[position]
            position += 1
            match operation:
                case bpf.LOAD_WORD:
                    (accumulator,) = struct.unpack_from("=I", data, operand)
                case bpf.AND:
                    accumulator &= operand & _WORD
                case bpf.JUMP:
                    position += operand
                case bpf.JUMP_EQUAL:
                    position += if_true if accumulator == operand else if_false
                case bpf.JUMP_GREATER_EQUAL:
                    position += if_true if accumulator >= operand else if_false
                case Simulator._JUMP_GREATER:
                    position += if_true if accumulator > operand else if_false
                case bpf.JUMP_BITS:
                    position += if_true if accumulator & operand else if_false
                case _:
                    return operand

    def _check(self, position: int, operation: int, if_true: int, if_false: int, operand: int) -> None:
        after = len(self._instructions) - position - 1
        match operation:
            case bpf.LOAD_WORD:
                if operand % 4 or operand >= _DATA.size:
                    raise InvalidProgram(f"{position}: loads from {operand}")
            case bpf.AND | bpf.RETURN:
                pass
            case bpf.JUMP:
                if operand >= after:
                    raise InvalidProgram(f"{position}: jumps out of the program")
            case bpf.JUMP_EQUAL | bpf.JUMP_GREATER_EQUAL | Simulator._JUMP_GREATER | bpf.JUMP_BITS:
                if max(if_true, if_false) >= after:
                    raise InvalidProgram(f"{position}: jumps out of the program")
            case _:
                raise InvalidProgram(f"{position}: operation {operation:#x}")
