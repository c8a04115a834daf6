"""Lists of system calls: they run in order, stop at the first surprise, and name it."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest

from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.steps import ANY, AT_FDCWD, Code, Steps, numbers

MACHINES = ("x86_64", "aarch64")


@pytest.fixture(scope="module")
def code() -> Code:
    return Code(os.uname().machine)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_the_filters_know(machine: str) -> None:
    known = machine_named(machine).numbers
    assert {name: known[name] for name in numbers(machine)} == numbers(machine)


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(OSError, match="mips"):
        numbers("mips")


def test_they_run_in_order_and_pass_every_argument(code: Code, tmp_path: Path) -> None:
    steps = Steps(code)
    free = lowest_free()
    steps.add("openat", AT_FDCWD, os.fsencode(tmp_path / "made"), os.O_CREAT | os.O_WRONLY, 0o640, expect=free)
    steps.add("write", free, b"one ", 4, expect=4)
    steps.add("write", free, b"two", 3, expect=3)
    steps.add("close", free)
    steps.run()
    assert (tmp_path / "made").read_bytes() == b"one two"
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640


def test_the_first_surprise_ends_the_list_and_is_named(code: Code, tmp_path: Path) -> None:
    steps = Steps(code)
    steps.add("mkdirat", AT_FDCWD, os.fsencode(tmp_path / "a"), 0o755)
    steps.add("mkdirat", AT_FDCWD, os.fsencode(tmp_path / "a"), 0o755)
    steps.add("mkdirat", AT_FDCWD, os.fsencode(tmp_path / "b"), 0o755)
    with pytest.raises(OSError, match="mkdirat, step 1: File exists") as caught:
        steps.run()
    assert caught.value.errno == errno.EEXIST
    assert not (tmp_path / "b").exists()


def test_a_success_is_a_surprise_where_a_refusal_was_due(code: Code, tmp_path: Path) -> None:
    steps = Steps(code)
    steps.add("mkdirat", AT_FDCWD, os.fsencode(tmp_path / "a"), 0o755, expect=-errno.EACCES)
    with pytest.raises(OSError, match="answered 0 where -13 was due") as caught:
        steps.run()
    assert caught.value.errno == errno.EPROTO


def test_a_refusal_that_was_due_is_no_surprise(code: Code) -> None:
    steps = Steps(code)
    steps.add("openat", AT_FDCWD, b"/no/such/file", os.O_RDONLY, expect=-errno.ENOENT)
    steps.add("close", 1 << 30, expect=-errno.EBADF)
    steps.run()


def test_any_answer_but_an_error_is_taken_where_any_is_due(code: Code) -> None:
    reader, writer = os.pipe()
    steps = Steps(code)
    steps.add("write", writer, b"abc", 3, expect=ANY)
    steps.run()
    assert os.read(reader, 9) == b"abc"
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        steps.run()
    os.close(reader)


def test_an_argument_and_an_answer_can_be_put_in_later(code: Code) -> None:
    reader, writer = os.pipe()
    steps = Steps(code)
    row = steps.add("write", 0, b"abcdef", 0)
    steps.set(row, 0, writer)
    steps.set(row, 2, 4)
    steps.expect(row, 4)
    steps.run()
    assert os.read(reader, 9) == b"abcd"
    os.close(reader)
    os.close(writer)


def test_a_clone_lets_go_of_everything_and_sleeps(code: Code) -> None:
    reader, writer = os.pipe()
    where = (ctypes.c_int * 1)()
    steps = Steps(code)
    steps.add("clone", 0x1000 | 17, 0, where, expect=ANY)  # CLONE_PIDFD | SIGCHLD
    steps.run()
    os.close(writer)
    assert os.read(reader, 1) == b""  # returns only when nobody has the other end any more
    info = Path(f"/proc/self/fdinfo/{where[0]}").read_text()
    pid = int(info.partition("\nPid:\t")[2].partition("\n")[0])
    assert os.listdir(f"/proc/{pid}/fd") == []
    os.kill(pid, 9)
    assert os.waitpid(pid, 0)[1] == 9
    os.close(where[0])
    os.close(reader)


def lowest_free() -> int:
    fd = os.dup(0)
    os.close(fd)
    return fd
