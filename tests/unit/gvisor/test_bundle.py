"""What runsc is told about a box follows from the worker's spec alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.gvisor.bundle import Plan, command_of, config_of, host_memory, host_tasks, mounts_of
from ringfence.isolation.gvisor.runsc import Runsc
from ringfence.ports import WorkerSpec

PLAN = Plan("rf-1", WorkerSpec(), 1 << 28, 1.5, ("python3", "-c", "boot"), owns_ids=True)
OLD = Runsc("/usr/bin/runsc", 20221219, frozenset({"host-uds", "overlay2"}), "ptrace")


def test_the_init_has_what_it_needs_to_become_the_guest_and_no_more() -> None:
    process: dict[str, Any] = config_of(PLAN)["process"]
    held = {capability for each in process["capabilities"].values() for capability in each}
    assert held == {"CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_KILL"}
    assert process["noNewPrivileges"] is True
    assert PLAN.guest_id == 1000


def test_an_ordinary_user_gives_its_one_id_and_says_so_to_runsc() -> None:
    plan = replace(PLAN, owns_ids=False)
    assert plan.guest_id == 0
    assert set(map(len, config_of(plan)["process"]["capabilities"].values())) == {0}
    assert "--rootless" in command_of(plan, OLD)
    assert "--rootless" not in command_of(PLAN, OLD)


def test_nothing_can_be_written_but_the_one_bounded_file_system() -> None:
    config = config_of(replace(PLAN, shown=(("/host/packages", "/opt/ringfence/packages"),)))
    assert config["root"] == {"path": "/rootfs", "readonly": True}
    bound = {each["destination"]: each for each in config["mounts"] if each["type"] == "bind"}
    writable = {target for target, each in bound.items() if "rw" in each["options"]}
    assert writable == {"/workspace/work", "/workspace/artifacts", "/tmp", "/home/sandbox", "/dev/shm"}
    assert {bound[target]["source"].rpartition("/")[0] for target in writable} == {"/box/files"}
    assert bound["/opt/ringfence/packages"]["source"] == "/shown/0"
    assert all({"nosuid", "nodev"} <= set(each["options"]) for each in config["mounts"])


def test_no_path_of_the_host_is_in_what_runsc_is_told() -> None:
    plan = replace(PLAN, shown=(("/host/packages", "/opt/ringfence/packages"),))
    assert "/host" not in repr(config_of(plan))
    assert "/host" not in repr(mounts_of(plan))


@given(st.integers(1, 4096), st.integers(1 << 20, 1 << 40))
def test_a_box_is_given_what_its_guest_may_have_and_not_less(pids: int, memory: int) -> None:
    plan = replace(PLAN, spec=WorkerSpec(pids=pids), memory_bytes=memory)
    limits = {each["type"]: each["hard"] for each in config_of(plan)["process"]["rlimits"]}
    assert limits["RLIMIT_NPROC"] == pids + 1
    assert config_of(plan)["linux"]["resources"]["memory"]["limit"] == memory
    assert host_memory(memory) > memory
    assert host_tasks(pids) > pids


@pytest.mark.parametrize("flag", ["--network=none", "--ignore-cgroups", "--host-uds=none", "--overlay2=none"])
def test_the_command_shuts_what_this_release_could_open(flag: str) -> None:
    assert flag in command_of(PLAN, OLD)


def test_the_command_names_no_option_that_this_release_does_not_know() -> None:
    assert not [word for word in command_of(PLAN, OLD) if word.startswith("--directfs")]
    newer = replace(OLD, flags=OLD.flags | {"directfs"}, platform="systrap")
    assert "--directfs=false" in command_of(PLAN, newer)
    assert "--platform=systrap" in command_of(PLAN, newer)
