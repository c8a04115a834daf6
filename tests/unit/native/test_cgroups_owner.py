"""Names tell owners, and only an owner that is certainly dead is taken for dead."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.native.cgroup_contract import counter, quota_us
from ringfence.isolation.native.cgroup_owner import (
    Owner,
    current_owner,
    directory_name,
    is_dead,
    parse_owner,
    parse_stat,
    process_state,
)

numbers = st.integers(min_value=0, max_value=2**63)


@given(numbers, numbers, numbers)
def test_a_directory_name_tells_its_owner(pid: int, started: int, namespace: int) -> None:
    owner = Owner(pid, started, namespace)
    assert parse_owner(directory_name(owner)) == owner


def test_two_directories_of_one_owner_differ() -> None:
    owner = current_owner()
    assert directory_name(owner) != directory_name(owner)


@pytest.mark.parametrize(
    "name",
    [
        "ringfence",
        "ringfence-host",
        "ringfence-1-2-3",
        "ringfence-1-2-3-4-5",
        "xringfence-1-2-3-4",
        "docker",
        "ringfence-1-2-3-4\n",
    ],
)
def test_names_that_are_not_ours_have_no_owner(name: str) -> None:
    assert parse_owner(name) is None


@given(st.binary(min_size=0, max_size=15), st.integers(min_value=0, max_value=2**63))
def test_a_hostile_command_name_cannot_forge_the_start_time(command: bytes, started: int) -> None:
    text = b"42 (" + command + b") S " + b" ".join(b"%d" % number for number in range(4, 22)) + b" %d 0 0\n" % started
    assert parse_stat(text) == ("S", started)


@pytest.mark.parametrize(
    ("state", "dead"),
    [(None, True), (("S", 50), False), (("R", 50), False), (("S", 51), True), (("Z", 50), True), (("X", 50), True)],
)
def test_dead_means_gone_reused_or_a_zombie(state: tuple[str, int] | None, dead: bool) -> None:
    assert is_dead(Owner(7, 50, 1), state, 1) is dead


def test_an_owner_in_a_foreign_pid_namespace_is_never_judged_dead() -> None:
    assert is_dead(Owner(7, 50, 1), None, 2) is False


def test_this_process_is_alive_and_a_zombie_is_not() -> None:
    owner = current_owner()
    assert owner.pid == os.getpid()
    assert is_dead(owner, process_state(owner.pid), owner.namespace) is False
    child = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    state = process_state(child.pid)
    assert state is not None
    assert is_dead(Owner(child.pid, state[1], owner.namespace), state, owner.namespace) is True
    child.wait()
    assert process_state(child.pid) is None


def test_counters_are_found_by_their_whole_key() -> None:
    assert counter(b"oom 3\noom_kill 2\noom_group_kill 1\n", b"oom_kill") == 2
    assert counter(b"oom_kill_disable 0\nunder_oom 0\n", b"oom_kill") == 0


@given(st.floats(min_value=0.0, max_value=1024.0))
def test_a_quota_is_never_below_what_the_kernel_takes(cpus: float) -> None:
    assert quota_us(cpus) >= 1000
    assert abs(quota_us(cpus) - cpus * 100_000) <= 1000
