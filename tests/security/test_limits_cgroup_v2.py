"""Where runs go on a real cgroup v2 tree: never by moving strangers, never by switching controllers on above us."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from ringfence.capability.limits import Limits
from ringfence.isolation.linux.cgroup_plan import HOST_LEAF, parse_mounts
from ringfence.isolation.linux.cgroups import detect
from ringfence.isolation.linux.cgroups_v2 import V2Host

pytestmark = pytest.mark.guarantee(7)

WANTED = ["cpu", "memory", "pids"]


def read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


@pytest.fixture
def top() -> Iterator[str]:
    """A cgroup of the test's own directly below the root of a v2 tree, with all controllers for its children."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        root = next((mount.point for mount in parse_mounts(file.read()) if mount.unified), None)
    if root is None or not {*WANTED} <= {*read(f"{root}/cgroup.controllers").split()} or os.geteuid() != 0:
        pytest.skip("needs root and a cgroup v2 tree that has memory, pids and cpu")
    write(f"{root}/cgroup.subtree_control", "+memory +pids +cpu")
    path = f"{root}/placement-test"
    os.mkdir(path)
    write(f"{path}/cgroup.subtree_control", "+memory +pids +cpu")
    yield path
    for directory, _, _ in os.walk(path, topdown=False):
        os.rmdir(directory)


def found_from(path: str, uid: int = 0) -> dict[str, Any]:
    """Run `detect` and one run in a child that lives in the cgroup at `path`; return what it saw."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write(f"{path}/cgroup.procs", "0")
            if uid:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            host = detect()
            seen: dict[str, Any] = {"kind": host.report.kind, "controllers": sorted(host.report.controllers)}
            seen |= {"own": read("/proc/self/cgroup").strip(), "notes": host.report.notes, "fix": host.report.fix}
            if isinstance(host, V2Host):
                seen["parent"] = host.parent
                run = host.create("run", Limits())
                guest = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
                write(f"{run.paths[0]}/cgroup.procs", str(guest.pid))
                seen["member"] = f"{guest.pid}\n" == read(f"{run.paths[0]}/cgroup.procs")
                seen["limit"] = read(f"{run.paths[0]}/memory.max").strip()
                guest.kill()
                seen["ended"] = guest.wait()
                while not (run.remove() and host.close()):
                    os.sched_yield()
            os.write(writer, json.dumps(seen).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()
    os.waitpid(pid, 0)
    result: dict[str, Any] = json.loads(text)
    return result


def test_alone_in_its_cgroup_the_host_moves_to_a_leaf_and_runs_go_below_its_own_cgroup(top: str) -> None:
    os.mkdir(f"{top}/service")
    seen = found_from(f"{top}/service")
    assert (seen["kind"], seen["controllers"], seen["parent"]) == ("v2", WANTED, f"{top}/service")
    assert seen["own"] == f"0::/placement-test/service/{HOST_LEAF}"
    assert (seen["member"], seen["limit"], seen["ended"]) == (True, str(Limits().memory_bytes), -signal.SIGKILL)
    assert seen["notes"] == []


def test_a_second_start_from_the_leaf_uses_the_same_place(top: str) -> None:
    os.mkdir(f"{top}/service")
    found_from(f"{top}/service")
    seen = found_from(f"{top}/service/{HOST_LEAF}")
    assert (seen["controllers"], seen["parent"]) == (WANTED, f"{top}/service")
    assert seen["own"] == f"0::/placement-test/service/{HOST_LEAF}"


def test_a_stranger_in_our_cgroup_is_never_moved_and_runs_go_beside_us(top: str) -> None:
    os.mkdir(f"{top}/session")
    stranger = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
    try:
        write(f"{top}/session/cgroup.procs", str(stranger.pid))
        seen = found_from(f"{top}/session")
        assert read(f"{top}/session/cgroup.procs") == f"{stranger.pid}\n"
        assert os.listdir(f"{top}/session") == [
            name for name in os.listdir(f"{top}/session") if "ringfence" not in name
        ]
    finally:
        stranger.kill()
        stranger.communicate()
    assert seen["own"] == "0::/placement-test/session"
    assert (seen["controllers"], seen["parent"]) == (WANTED, top)
    assert "does not cover them" in seen["notes"][0]


def test_controllers_of_an_ancestor_are_never_switched_on(top: str) -> None:
    os.makedirs(f"{top}/slice/session")
    write(f"{top}/slice/cgroup.subtree_control", "+pids")
    stranger = subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE)
    try:
        write(f"{top}/slice/session/cgroup.procs", str(stranger.pid))
        seen = found_from(f"{top}/slice/session")
    finally:
        stranger.kill()
        stranger.communicate()
    assert read(f"{top}/slice/cgroup.subtree_control") == "pids\n"
    assert (seen["controllers"], seen["parent"]) == (WANTED, top)


def test_an_ordinary_user_uses_the_subtree_delegated_to_it(top: str) -> None:
    os.mkdir(f"{top}/scope")
    for name in (".", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
        os.chown(f"{top}/scope/{name}", 65534, 65534)
    seen = found_from(f"{top}/scope", uid=65534)
    assert (seen["kind"], seen["controllers"], seen["parent"]) == ("v2", WANTED, f"{top}/scope")
    assert (seen["member"], seen["ended"]) == (True, -signal.SIGKILL)


def test_an_ordinary_user_without_delegation_is_given_the_systemd_command(top: str) -> None:
    os.mkdir(f"{top}/login")
    seen = found_from(f"{top}/login", uid=65534)
    assert (seen["kind"], seen["controllers"]) == ("none", [])
    assert "systemd-run --user --scope -p Delegate=yes" in seen["fix"]
