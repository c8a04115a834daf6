"""Lists of system calls that run without the interpreter, in a few dozen instructions of our own.

A freshly forked worker pays for every page of the interpreter it touches, and the way from the fork to a sealed worker
is a hundred calls long. Said in Python it costs more than everything else in a run (ADR 0015 has the figures). Here it
is a table that the parent has filled in: number, six arguments, expected result. The first call that does not answer as
expected ends the list, and its name is in the error; nothing is retried and nothing is decided in between.
"""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANY = (1 << 63) - 1
"""Expect any result that is not an error."""

AT_FDCWD = -100
_MOST_ARGUMENTS = 6
_EXPECTED, _RESULT, _WIDTH = 7, 8, 9  # the longs of a row: number, arguments, these two

# run(table, rows) answers how many rows were left. The one call that returns twice, clone, is for the anchor: there the
# second return takes a session of its own, closes every descriptor (where the kernel has no call for all of them, the
# first 16) and sleeps for good, without a stack, on nothing but these instructions.
_CODE = {
    "x86_64": bytes.fromhex(
        "53"  # push rbx
        "55"  # push rbp
        "4889fb"  # mov rbx, rdi
        "4889f5"  # mov rbp, rsi
        "4885ed"  # again: test rbp, rbp
        "7449"  # je done
        "488b03"  # mov rax, [rbx]
        "488b7b08"  # mov rdi, [rbx+0x8]
        "488b7310"  # mov rsi, [rbx+0x10]
        "488b5318"  # mov rdx, [rbx+0x18]
        "4c8b5320"  # mov r10, [rbx+0x20]
        "4c8b4328"  # mov r8, [rbx+0x28]
        "4c8b4b30"  # mov r9, [rbx+0x30]
        "0f05"  # syscall
        "4885c0"  # test rax, rax
        "7506"  # jne told
        "48833b38"  # cmp [rbx], 0x38
        "7427"  # je sleeper
        "483b4338"  # told: cmp rax, [rbx+0x38]
        "740e"  # je next
        "488b4b38"  # mov rcx, [rbx+0x38]
        "48ffc1"  # inc rcx
        "710e"  # jno failed
        "4885c0"  # test rax, rax
        "7809"  # js failed
        "4883c348"  # next: add rbx, 0x48
        "48ffcd"  # dec rbp
        "ebb6"  # jmp again
        "48894340"  # failed: mov [rbx+0x40], rax
        "4889e8"  # done: mov rax, rbp
        "5d"  # pop rbp
        "5b"  # pop rbx
        "c3"  # ret
        "b870000000"  # sleeper: mov eax, 0x70
        "0f05"  # syscall
        "31ff"  # xor edi, edi
        "beffffff7f"  # mov esi, 0x7fffffff
        "31d2"  # xor edx, edx
        "b8b4010000"  # mov eax, 0x1b4
        "0f05"  # syscall
        "85c0"  # test eax, eax
        "7410"  # je rest
        "bf0f000000"  # mov edi, 0xf
        "b803000000"  # closing: mov eax, 0x3
        "0f05"  # syscall
        "ffcf"  # dec edi
        "79f5"  # jns closing
        "b822000000"  # rest: mov eax, 0x22
        "0f05"  # syscall
        "ebf7"  # jmp rest
    ),
    "aarch64": bytes.fromhex(
        "e90300aa"  # mov x9, x0
        "ea0301aa"  # mov x10, x1
        "0b00f092"  # mov x11, #0x7fffffffffffffff
        "8a0200b4"  # again: cbz x10, done
        "280140f9"  # ldr x8, [x9]
        "208540a9"  # ldp x0, x1, [x9, #8]
        "228d41a9"  # ldp x2, x3, [x9, #24]
        "249542a9"  # ldp x4, x5, [x9, #40]
        "010000d4"  # svc #0x0
        "800000b5"  # cbnz x0, told
        "280140f9"  # ldr x8, [x9]
        "1f7103f1"  # cmp x8, #0xdc
        "a0010054"  # b.eq sleeper
        "221d40f9"  # told: ldr x2, [x9, #56]
        "1f0002eb"  # cmp x0, x2
        "80000054"  # b.eq next
        "5f000beb"  # cmp x2, x11
        "a1000054"  # b.ne failed
        "8000f8b7"  # tbnz x0, #63, failed
        "29210191"  # next: add x9, x9, #0x48
        "4a0500d1"  # sub x10, x10, #0x1
        "eeffff17"  # b again
        "202100f9"  # failed: str x0, [x9, #64]
        "e0030aaa"  # done: mov x0, x10
        "c0035fd6"  # ret
        "a81380d2"  # sleeper: mov x8, #0x9d
        "010000d4"  # svc #0x0
        "000080d2"  # mov x0, #0x0
        "e17b40b2"  # mov x1, #0x7fffffff
        "020080d2"  # mov x2, #0x0
        "883680d2"  # mov x8, #0x1b4
        "010000d4"  # svc #0x0
        "e00000b4"  # cbz x0, rest
        "e90180d2"  # mov x9, #0xf
        "e00309aa"  # closing: mov x0, x9
        "280780d2"  # mov x8, #0x39
        "010000d4"  # svc #0x0
        "290500f1"  # subs x9, x9, #0x1
        "85ffff54"  # b.pl closing
        "000080d2"  # rest: mov x0, #0x0
        "010080d2"  # mov x1, #0x0
        "020080d2"  # mov x2, #0x0
        "030080d2"  # mov x3, #0x0
        "280980d2"  # mov x8, #0x49
        "010000d4"  # svc #0x0
        "faffff17"  # b rest
    ),
}

_NUMBERS = {
    "x86_64": {
        "write": 1, "close": 3, "rt_sigprocmask": 14, "ioctl": 16, "socket": 41, "sendmsg": 46, "bind": 49,
        "listen": 50, "clone": 56,
        "chdir": 80, "setsid": 112, "setresuid": 117, "setresgid": 119, "capset": 126, "prctl": 157, "mount": 165,
        "sethostname": 170, "openat": 257, "mkdirat": 258, "fchownat": 260, "fchmodat": 268, "unshare": 272,
        "dup3": 292, "prlimit64": 302, "setns": 308, "seccomp": 317,
    },
    "aarch64": {
        "dup3": 24, "ioctl": 29, "mkdirat": 34, "mount": 40, "chdir": 49, "fchmodat": 53, "fchownat": 54,
        "openat": 56, "close": 57, "write": 64, "unshare": 97, "capset": 91, "rt_sigprocmask": 135,
        "setresuid": 147, "setresgid": 149, "setsid": 157, "sethostname": 161, "prctl": 167, "socket": 198,
        "bind": 200, "listen": 201, "sendmsg": 211, "clone": 220, "prlimit64": 261, "setns": 268, "seccomp": 277,
    },
}  # fmt: skip
# given out since the numbers are the same everywhere
_COMMON = {
    "pidfd_send_signal": 424, "move_mount": 429, "close_range": 436, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip

_PROT_READ, _PROT_WRITE, _PROT_EXEC = 1, 2, 4
_PRIVATE_ANONYMOUS = 0x22
_PAGE = 4096


def numbers(machine: str) -> dict[str, int]:
    """Return the system calls that a list may have on this machine.

    Raises:
        OSError: There is no code for it.
    """
    if machine not in _CODE:
        raise OSError(errno.ENOEXEC, f"there is no native box for {machine} machines")
    return {**_NUMBERS[machine], **_COMMON}


class Steps:
    """A list that is filled in once, given its last values before each run, and run in a child."""

    def __init__(self, code: Code) -> None:
        """Begin an empty list that `code` will run."""
        self._code = code
        self._rows: list[list[int]] = []
        self._names: list[str] = []
        self._held: list[Any] = []
        self._table: ctypes.Array[ctypes.c_long] | None = None

    def add(self, call: str, *arguments: int | bytes | ctypes.Array[Any] | ctypes.Structure, expect: int = 0) -> int:
        """Append a call and return its row; objects are passed by address and kept alive."""
        values = [argument if isinstance(argument, int) else self._address(argument) for argument in arguments]
        values += [0] * (_MOST_ARGUMENTS - len(values))
        self._rows.append([self._code.numbers[call], *values, expect, 0])
        self._names.append(call)
        return len(self._rows) - 1

    def set(self, row: int, argument: int, value: int) -> None:
        """Give one argument the value that is only known now."""
        self.table()[row * _WIDTH + 1 + argument] = value

    def expect(self, row: int, result: int) -> None:
        """Give one call the answer that is only known now."""
        self.table()[row * _WIDTH + _EXPECTED] = result

    def run(self) -> None:
        """Make the calls.

        Raises:
            OSError: Naming the call that did not answer as expected, and how far the list came.
        """
        table = self.table()
        left = self._code.run(table, len(self._rows))
        if left:
            row = len(self._rows) - left
            result = table[row * _WIDTH + _RESULT]
            number = -result if result < 0 else errno.EPROTO
            raise OSError(number, f"{self._names[row]}, step {row}: {self._said(row, result)}")

    def table(self) -> ctypes.Array[ctypes.c_long]:
        """Return the list as the code reads it."""
        if self._table is None:
            flat = [value for row in self._rows for value in row]
            self._table = (ctypes.c_long * len(flat))(*flat)
        return self._table

    def _address(self, data: bytes | ctypes.Array[Any] | ctypes.Structure) -> int:
        self._held.append(data)
        if isinstance(data, bytes):
            return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
        return ctypes.addressof(data)

    def _said(self, row: int, result: int) -> str:
        if result < 0:
            return os.strerror(-result)
        return f"answered {result} where {self.table()[row * _WIDTH + _EXPECTED]} was due"


class Code:
    """The instructions, in memory of their own that is never writable and executable at once."""

    def __init__(self, machine: str) -> None:
        """Map them.

        Raises:
            OSError: There are none for this machine, or it forbids executable memory that is no file.
        """
        self.numbers = numbers(machine)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [
            ctypes.c_void_p,
            *(ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
            ctypes.c_long,
        ]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        where = libc.mmap(None, _PAGE, _PROT_READ | _PROT_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
        if where in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "no memory for the steps of a box")
        ctypes.memmove(where, _CODE[machine], len(_CODE[machine]))
        if libc.mprotect(where, _PAGE, _PROT_READ | _PROT_EXEC):
            raise OSError(ctypes.get_errno(), "this machine forbids executable memory that is no file")
        self.run = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_long)(where)
