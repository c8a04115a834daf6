"""Where to put runs, decided from recorded texts of machines that differ in how they mount cgroups."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.native.cgroup_plan import (
    Plan,
    V1Place,
    ancestors,
    enabling,
    fix_for,
    may_leave,
    parse_membership,
    plan,
    unescape,
)

V1_SPLIT = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
"""
V1_SPLIT_SELF = "8:pids:/\n4:memory:/outer/a1\n3:cpuset:/\n2:cpuacct:/\n1:cpu:/\n9:name=systemd:/\n"

V1_CO_MOUNTED = """\
30 25 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec,relatime shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid,nodev,noexec,relatime shared:11 - cgroup cgroup rw,xattr,name=systemd
35 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec,relatime shared:15 - cgroup cgroup rw,cpu,cpuacct
38 30 0:34 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec,relatime shared:18 - cgroup cgroup rw,memory
41 30 0:37 / /sys/fs/cgroup/pids rw,nosuid,nodev,noexec,relatime shared:21 - cgroup cgroup rw,pids
"""
V1_CO_MOUNTED_SELF = """\
10:pids:/user.slice/user-1000.slice/session-2.scope
7:memory:/user.slice/user-1000.slice/session-2.scope
4:cpu,cpuacct:/user.slice
1:name=systemd:/user.slice/user-1000.slice/session-2.scope
0::/user.slice/user-1000.slice/session-2.scope
"""

UNIFIED = "29 23 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
USER_SCOPE = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope\n"

DOCKER_V2 = "763 762 0:25 / /sys/fs/cgroup ro,nosuid,nodev,noexec,relatime - cgroup2 cgroup rw,nsdelegate\n"
DOCKER_V1 = """\
512 511 0:60 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=755
513 512 0:28 /docker/5f /sys/fs/cgroup/systemd ro,nosuid,nodev,noexec - cgroup cgroup rw,xattr,name=systemd
514 512 0:31 /docker/5f /sys/fs/cgroup/cpu,cpuacct ro,nosuid,nodev,noexec - cgroup cgroup rw,cpu,cpuacct
515 512 0:34 /docker/5f /sys/fs/cgroup/memory ro,nosuid,nodev,noexec,relatime - cgroup cgroup rw,memory
516 512 0:37 /docker/5f /sys/fs/cgroup/pids ro,nosuid,nodev,noexec,relatime - cgroup cgroup rw,pids
"""
DOCKER_V1_SELF = "4:pids:/docker/5f\n3:memory:/docker/5f\n2:cpu,cpuacct:/docker/5f\n1:name=systemd:/docker/5f\n"


def test_split_v1_trees_are_used_below_our_own_cgroup_of_each() -> None:
    assert plan(V1_SPLIT, V1_SPLIT_SELF) == Plan(
        v1=(
            V1Place("/sys/fs/cgroup/cpu", frozenset({"cpu"})),
            V1Place("/sys/fs/cgroup/cpuacct", frozenset({"cpuacct"})),
            V1Place("/sys/fs/cgroup/memory/outer/a1", frozenset({"memory"})),
            V1Place("/sys/fs/cgroup/pids", frozenset({"pids"})),
        ),
        v2=(),
        obstacles=(),
    )


def test_co_mounted_controllers_are_one_place_and_a_hybrid_machine_offers_both_interfaces() -> None:
    found = plan(V1_CO_MOUNTED, V1_CO_MOUNTED_SELF)
    session = "user.slice/user-1000.slice/session-2.scope"
    assert found.v1 == (
        V1Place("/sys/fs/cgroup/cpu,cpuacct/user.slice", frozenset({"cpu", "cpuacct"})),
        V1Place(f"/sys/fs/cgroup/memory/{session}", frozenset({"memory"})),
        V1Place(f"/sys/fs/cgroup/pids/{session}", frozenset({"pids"})),
    )
    assert found.v2[0] == f"/sys/fs/cgroup/unified/{session}"
    assert found.v2[-1] == "/sys/fs/cgroup/unified"


def test_a_unified_root_has_one_candidate() -> None:
    assert plan(UNIFIED, "0::/\n") == Plan(v1=(), v2=("/sys/fs/cgroup",), obstacles=())


def test_a_user_scope_is_tried_before_the_slices_above_it() -> None:
    user = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"
    assert plan(UNIFIED, USER_SCOPE).v2[:3] == (f"{user}/app.slice/run-r1.scope", f"{user}/app.slice", user)


def test_a_process_started_from_a_host_leaf_uses_the_cgroup_above_it() -> None:
    assert plan(UNIFIED, "0::/app.service/ringfence-host\n").v2 == ("/sys/fs/cgroup/app.service", "/sys/fs/cgroup")


def test_a_read_only_v2_container_is_ruled_out_with_the_docker_fix() -> None:
    found = plan(DOCKER_V2, "0::/\n")
    assert found == Plan(v1=(), v2=(), obstacles=("/sys/fs/cgroup is mounted read-only",))
    assert "--cgroupns private" in fix_for(found, root=True)


def test_a_read_only_v1_container_is_ruled_out_tree_by_tree() -> None:
    found = plan(DOCKER_V1, DOCKER_V1_SELF)
    assert found.v1 == ()
    assert found.obstacles == tuple(
        f"/sys/fs/cgroup/{name} is mounted read-only" for name in ("cpu,cpuacct", "memory", "pids")
    )


def test_a_writable_v1_container_works_at_its_mount_points() -> None:
    found = plan(DOCKER_V1.replace(" ro,", " rw,"), DOCKER_V1_SELF)
    assert [place.own for place in found.v1] == [f"/sys/fs/cgroup/{name}" for name in ("cpu,cpuacct", "memory", "pids")]


@pytest.mark.parametrize("own", ["/../other", "/elsewhere", "/docker/5f0"])
def test_a_mount_that_does_not_show_our_own_cgroup_is_not_used(own: str) -> None:
    mounted = "515 512 0:34 /docker/5f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    found = plan(mounted, f"3:memory:{own}\n")
    assert found == Plan((), (), ("our own cgroup is not visible below /sys/fs/cgroup/memory",))


def test_a_cgroup_mount_covered_by_another_file_system_is_not_used() -> None:
    covered = UNIFIED + "90 29 0:99 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    assert plan(covered, "0::/\n") == Plan((), (), ("no cgroup file system is mounted",))


def test_no_mounts_at_all_is_said_plainly() -> None:
    found = plan("", "0::/\n")
    assert found.obstacles == ("no cgroup file system is mounted",)
    assert "mount -t cgroup2" in fix_for(found, root=True)


def test_the_fix_names_the_exact_directories_on_v1_and_the_systemd_command_on_v2() -> None:
    assert "/sys/fs/cgroup/memory/outer/a1/ringfence" in fix_for(plan(V1_SPLIT, V1_SPLIT_SELF), root=False)
    assert fix_for(plan(UNIFIED, USER_SCOPE), root=False).startswith("systemd-run --user --scope -p Delegate=yes")
    assert "Delegate=yes" in fix_for(plan(UNIFIED, "0::/system.slice/app.service\n"), root=True)


def test_controllers_are_switched_on_only_in_our_own_cgroup() -> None:
    present = frozenset({"cpu", "io", "memory", "pids"})
    assert enabling(present, frozenset({"pids"}), own=True) == {"cpu", "memory"}
    assert enabling(present, frozenset({"pids"}), own=False) == frozenset()


@pytest.mark.parametrize(("members", "allowed"), [((7,), True), ((7, 8), False), ((0, 7), False), ((), False)])
def test_only_a_sole_member_may_leave_its_cgroup(members: tuple[int, ...], allowed: bool) -> None:
    assert may_leave(members, 7) is allowed


def test_a_path_with_colons_is_kept_whole() -> None:
    assert parse_membership("0::/a:b/c:d\n4:memory:/x:y\n") == ({"memory": "/x:y"}, "/a:b/c:d")


@given(st.text(st.characters(codec="ascii", exclude_characters="/"), min_size=1, max_size=20))
def test_every_name_survives_the_escapes_of_mountinfo(name: str) -> None:
    escaped = "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in name)
    assert unescape(escaped) == name


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=6))
def test_ancestors_run_from_our_own_cgroup_to_the_mount_point(parts: list[str]) -> None:
    chain = ancestors("/top", "/".join(["/top", *parts]))
    assert len(chain) == len(parts) + 1
    assert chain[-1] == "/top"
    assert all(lower.rpartition("/")[0] == upper for lower, upper in itertools.pairwise(chain))
