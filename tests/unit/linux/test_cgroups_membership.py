"""Whether a process is in its cgroups, as the kernel prints it."""

from __future__ import annotations

import pytest

from ringfence.isolation.linux.cgroup_contract import CgroupReport
from ringfence.isolation.linux.cgroups_v1 import Lane, Tree, V1Host, V1Run

OWNER = "ringfence-7-8-9-0"


@pytest.mark.parametrize(
    ("memory", "pids", "inside"),
    [
        (b"/above/%s/rf-1", b"/%s/lane-3", True),
        (b"/ab\xffo\rve:/%s/rf-1", b"/%s/lane-3", True),  # what somebody else called a cgroup above ours
        (b"/%s/rf-1", b"/%s/lane-30", False),
        (b"/%s/rf-1", b"/%s/a-lane-3", False),
        (b"/%s/rf-1", b"/another-%s/lane-3", False),
        (b"/%s/rf-1", b"/%s/lane-3/below", False),
        (b"/%s/rf-1", b"/", False),
        (b"/%s", b"/%s/lane-3", False),
    ],
)
def test_whether_a_worker_is_in_its_cgroups_is_told_by_whole_names(memory: bytes, pids: bytes, *, inside: bool) -> None:
    trees = [Tree(f"/sys/fs/cgroup/{kind}/{OWNER}", frozenset({kind}), -1) for kind in ("memory", "pids")]
    host = V1Host((), CgroupReport("v1", frozenset(), ""))
    run = V1Run(host, "rf-1", trees[0], (trees[1],), Lane("lane-3"))
    owner = OWNER.encode()
    lines = (b"9:name=systemd:/%s/lane-3" % owner, b"4:memory:" + memory.replace(b"%s", owner), b"0::/")
    assert run.holds(b"\n".join([*lines, b"8:pids:" + pids.replace(b"%s", owner), b""])) is inside
    assert not run.holds(b"\n".join([*lines, b""]))
