"""Pid 1 of a box: a program of a few instructions that lets the kernel reap orphans, and sleeps.

Something has to be pid 1, or the guest would be, with other rules for its signals and nobody to bury its orphans. A
fork of the interpreter would do, and costs as much again as the worker itself. This one opens nothing, reads nothing
and holds nothing; when it is killed, the kernel kills all else in its namespace.
"""

from __future__ import annotations

import struct

from ringfence.errors import IsolationUnavailable

_BASE = 0x400000
_HEADERS = struct.Struct("<16sHHIQQQIHHHHHH").size + struct.Struct("<IIQQQQQQ").size
_X86_64, _AARCH64 = 62, 183
_TYPE_EXECUTABLE, _SEGMENT_LOAD, _READ_AND_EXECUTE = 2, 1, 5
# struct sigaction as the kernel reads it: SIG_IGN, no flags, no restorer, an empty mask
_IGNORE = struct.pack("<QQQQ", 1, 0, 0, 0)

_CODE = {
    "x86_64": (
        _X86_64,
        bytes.fromhex(
            "b80d000000"  # mov   eax, 13         rt_sigaction(
            "bf11000000"  # mov   edi, 17             SIGCHLD,
            "488d3517000000"  # lea   rsi, [rip+23]   what follows the code,
            "31d2"  # xor   edx, edx                  NULL,
            "41ba08000000"  # mov   r10d, 8           8)
            "0f05"  # syscall
            "b822000000"  # again: mov eax, 34    pause()
            "0f05"  # syscall
            "ebf7"  # jmp   again
            "90909090"  # nop, to align the structure
        ),
    ),
    "aarch64": (
        _AARCH64,
        bytes.fromhex(
            "200280d2"  # mov   x0, 17            rt_sigaction(SIGCHLD,
            "a1010010"  # adr   x1, .+52              what follows the code,
            "020080d2"  # mov   x2, 0                 NULL,
            "030180d2"  # mov   x3, 8                 8)
            "c81080d2"  # mov   x8, 134
            "010000d4"  # svc   0
            "000080d2"  # again: mov x0, 0        ppoll(NULL,
            "010080d2"  # mov   x1, 0                 0,
            "020080d2"  # mov   x2, 0                 NULL,
            "030080d2"  # mov   x3, 0                 NULL)
            "280980d2"  # mov   x8, 73
            "010000d4"  # svc   0
            "faffff17"  # b     again
            "1f2003d5"  # nop, to align the structure
        ),
    ),
}


def program(machine: str) -> bytes:
    """Return the executable for `os.uname().machine`.

    Raises:
        IsolationUnavailable: There is none for this machine.
    """
    if machine not in _CODE:
        raise IsolationUnavailable(f"there is no native box for {machine} machines")
    elf_machine, code = _CODE[machine]
    size = _HEADERS + len(code) + len(_IGNORE)
    entry = _BASE + _HEADERS
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = (identity, _TYPE_EXECUTABLE, elf_machine, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = (_SEGMENT_LOAD, _READ_AND_EXECUTE, 0, _BASE, _BASE, size, size, 4096)
    return struct.pack("<16sHHIQQQIHHHHHH", *header) + struct.pack("<IIQQQQQQ", *segment) + code + _IGNORE
