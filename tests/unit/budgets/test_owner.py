"""Who made a reservation, and whether it is over."""

from __future__ import annotations

import os
from dataclasses import replace

from ringfence.budgets.owner import is_gone, this_process


def test_the_asking_process_is_alive() -> None:
    assert not is_gone(this_process())


def test_a_process_of_an_earlier_boot_is_gone_even_if_its_pid_is_in_use() -> None:
    assert is_gone(replace(this_process(), boot_id="00000000-0000-0000-0000-000000000000"))


def test_a_later_process_with_the_same_pid_is_not_the_owner() -> None:
    assert is_gone(replace(this_process(), started=this_process().started - 1))


def test_a_pid_of_another_namespace_says_nothing() -> None:
    assert not is_gone(replace(this_process(), pid_namespace="pid:[1]", pid=2**22 + 1))


def test_a_dead_process_is_gone_before_and_after_it_is_reaped() -> None:
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, f"{this_process().started}".encode())
        os._exit(0)
    started = int(os.read(ready, 64))
    owner = replace(this_process(), pid=child, started=started)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_gone(owner)
    os.waitpid(child, 0)
    assert is_gone(owner)
    os.close(ready)
    os.close(told)


def test_a_forked_child_is_an_owner_of_its_own() -> None:
    ours = this_process()
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told, str(this_process().pid == os.getpid() != ours.pid).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ready, 8) == b"True"
    os.close(ready)
    os.close(told)
