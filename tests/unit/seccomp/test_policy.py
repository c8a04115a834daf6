"""The policy itself: complete, without contradiction, and refusing what we say it refuses."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.seccomp import arguments, policy
from ringfence.isolation.linux.seccomp.filters import base_filter, init_filter, seal_filter
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.isolation.linux.seccomp.verdict import ALLOW, ENOSYS, EPERM, KILL_PROCESS, judge, refuse, strictest

MACHINES = ("x86_64", "aarch64")
GROUPS = (policy.ALLOWED, policy.SETUP, policy.ABSENT, policy.REFUSED)
GARBAGE = 0xDEADBEEF << 32
NOT_PERMITTED = """
    mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr
    statmount listmount unshare setns ptrace process_vm_readv process_vm_writev pidfd_getfd kcmp bpf perf_event_open
    userfaultfd open_by_handle_at name_to_handle_at init_module finit_module delete_module kexec_load kexec_file_load
    reboot swapon swapoff acct quotactl quotactl_fd iopl ioperm settimeofday clock_settime adjtimex clock_adjtime syslog
    lookup_dcookie vhangup uselib fanotify_init mbind set_mempolicy move_pages migrate_pages sethostname
    """
AS_IF_ABSENT = "clone3 io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key"


def guest(name: str, *values: int, machine: str = "x86_64") -> int:
    known = machine_named(machine)
    return judge(policy.guest_policy(known)[known.numbers[name]], [*values, *[0] * (6 - len(values))])


def test_every_system_call_that_has_a_number_is_decided_in_exactly_one_group() -> None:
    decided = sorted(name for groups in GROUPS for name in policy.names_in(groups))
    assert decided == sorted({name for machine in MACHINES for name in machine_named(machine).numbers})


def test_init_and_argument_rules_speak_only_of_calls_that_exist_and_are_allowed() -> None:
    allowed = set(policy.names_in(policy.ALLOWED))
    assert set(arguments.GUEST_RULES) <= allowed
    assert set(policy.names_in(policy.INIT_ALLOWED)) <= allowed
    assert set(arguments.INIT_RULES) <= set(policy.names_in(policy.INIT_ALLOWED))


@pytest.mark.parametrize("machine", MACHINES)
def test_no_two_names_share_a_number(machine: str) -> None:
    numbers = machine_named(machine).numbers
    assert len(set(numbers.values())) == len(numbers)


def test_holes_in_the_numbering_stay_holes() -> None:
    x86_64 = set(machine_named("x86_64").numbers.values())
    assert set(range(472)) - x86_64 == set(range(337, 424))
    aarch64 = set(machine_named("aarch64").numbers.values())
    assert set(range(472)) - aarch64 == {*range(244, 260), *range(295, 424)}


@pytest.mark.parametrize("build", [base_filter, seal_filter, init_filter])
@pytest.mark.parametrize("machine", ["riscv64", "i686", "armv7l", "aarch64_be", ""])
def test_a_machine_without_a_table_gets_no_filter_rather_than_a_wrong_one(build: object, machine: str) -> None:
    assert callable(build)
    with pytest.raises(IsolationUnavailable):
        build(machine)


@pytest.mark.parametrize("name", NOT_PERMITTED.split())
def test_what_could_change_the_box_or_the_host_is_refused_as_not_permitted(name: str) -> None:
    assert guest(name) == EPERM


@pytest.mark.parametrize("name", AS_IF_ABSENT.split())
def test_what_programs_can_do_without_is_answered_as_absent(name: str) -> None:
    assert guest(name) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("flag", [1 << bit for bit in (17, 25, 26, 27, 28, 29, 30)])
def test_a_clone_into_any_new_namespace_is_refused(machine: str, flag: int) -> None:
    assert guest("clone", flag | 0x11, machine=machine) == EPERM
    assert guest("clone", GARBAGE | flag, machine=machine) == EPERM


def test_threads_forks_and_vforks_are_allowed() -> None:
    thread, fork, vfork = 0x3D0F00, 0x01200011, 0x4111
    assert [guest("clone", flags) for flags in (thread, fork, vfork)] == [ALLOW] * 3


@pytest.mark.parametrize("family", [0, 3, 16, 17, 30, 31, 38, 40, 43, 44, 45, 0xFFFFFFFF])
def test_socket_families_outside_the_list_do_not_exist(family: int) -> None:
    absent = refuse(errno.EAFNOSUPPORT)
    assert [guest(call, GARBAGE | family, 1) for call in ("socket", "socketpair")] == [absent, absent]


@pytest.mark.parametrize("family", [2, 10])
@pytest.mark.parametrize("flags", [0, os.O_NONBLOCK, os.O_CLOEXEC, os.O_NONBLOCK | os.O_CLOEXEC])
@pytest.mark.parametrize(
    ("kind", "protocol", "verdict"),
    [
        (1, 0, ALLOW),
        (1, 6, ALLOW),
        (2, 0, ALLOW),
        (2, 17, ALLOW),
        (1, 262, refuse(errno.EPROTONOSUPPORT)),  # MPTCP
        (1, 132, refuse(errno.EPROTONOSUPPORT)),  # SCTP
        (2, 136, refuse(errno.EPROTONOSUPPORT)),  # UDP-Lite
        (2, 1, EPERM),  # ICMP
        (3, 255, EPERM),  # raw
        (5, 0, EPERM),  # SCTP by its type alone
        (6, 0, EPERM),  # DCCP by its type alone
        (10, 0, EPERM),  # packet
    ],
)
def test_internet_sockets_are_tcp_and_udp(family: int, flags: int, kind: int, protocol: int, verdict: int) -> None:
    assert guest("socket", family, kind | flags, protocol) == verdict
    assert guest("socket", GARBAGE | family, GARBAGE | kind | flags, GARBAGE | protocol) == verdict


@pytest.mark.parametrize("request_code", [0x5412, 0x541C, 0x541D, 0x5423])
def test_terminal_injection_is_refused_whatever_the_high_bits_say(request_code: int) -> None:
    assert guest("ioctl", 0, request_code) == guest("ioctl", 0, GARBAGE | request_code) == EPERM
    assert guest("ioctl", 0, 0x5401) == ALLOW


def test_a_node_can_be_a_fifo_but_not_a_device_or_a_whiteout() -> None:
    assert guest("mknodat", 0, 0, 0o010600) == ALLOW
    assert [guest("mknodat", 0, 0, kind) for kind in (0o020000, 0o060000)] == [EPERM, EPERM]


def test_limits_of_another_process_cannot_be_set() -> None:
    assert [guest("prlimit64", pid) for pid in (0, 1, 0xFFFFFFFF)] == [ALLOW, EPERM, EPERM]


@pytest.mark.parametrize("name", ["sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"])
def test_the_init_keeps_its_turn_while_threads_and_children_may_be_moved(name: str) -> None:
    assert [guest(name, pid) for pid in (0, 2, 7, 1, GARBAGE | 1)] == [ALLOW, ALLOW, ALLOW, EPERM, EPERM]


def test_priorities_are_set_of_processes_one_by_one_and_never_of_the_init() -> None:
    process, group, user = 0, 1, 2
    own, init = (process, 0), (process, GARBAGE | 1)
    assert [guest("setpriority", *who) for who in (own, (process, 7), init)] == [ALLOW, ALLOW, EPERM]
    assert [guest("setpriority", kind, who) for kind in (group, user) for who in (0, 1, 1000)] == [EPERM] * 6
    assert [guest("ioprio_set", 1 + kind, who) for kind, who in (own, (process, 7), init)] == [ALLOW, ALLOW, EPERM]
    assert [guest("ioprio_set", 1 + kind, who) for kind in (group, user) for who in (0, 1, 1000)] == [EPERM] * 6


def test_a_guest_may_load_filters_but_not_listen_to_them() -> None:
    assert [guest("seccomp", 1, flags) for flags in (0, 1, 8, 9)] == [ALLOW, ALLOW, EPERM, EPERM]


def test_prctl_rewrites_nothing_that_proc_shows() -> None:
    set_mm, set_name, from_the_future = 35, 15, 1000
    assert [guest("prctl", option) for option in (set_mm, set_name, from_the_future)] == [
        refuse(errno.EINVAL),
        ALLOW,
        refuse(errno.EINVAL),
    ]


def test_the_strictest_of_two_verdicts_wins_in_either_order() -> None:
    ladder = [KILL_PROCESS, 0, 0x00030000, EPERM, 0x7FC00000, ALLOW]
    for stricter, milder in pairwise(ladder):
        assert strictest(stricter, milder) == strictest(milder, stricter) == stricter
