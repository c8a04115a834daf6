from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.doctor import try_out
from ringfence.doctor.facts import Box, Cgroups
from ringfence.doctor.gather import cgroups, gather, state_directory, surroundings, sysctls


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_only_switches_that_exist_are_reported(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {"proc/sys/user/max_user_namespaces": "7\n", "sys/kernel/security/lsm": "yama,bpf"})
    assert sysctls(root) == {"user.max_user_namespaces": "7", "security.lsm": "yama,bpf"}


@pytest.mark.parametrize(
    ("files", "environ", "inside"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"run/systemd/container": "lxc"}, {}, "lxc"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"proc/version": "Linux version 4.4.0-19041-Microsoft"}, {}, "wsl1"),
        ({"proc/version": "Linux version 5.15.1-microsoft-standard-WSL2"}, {}, "wsl2"),
        ({"proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"}, {}, "gvisor"),
    ],
)
def test_what_surrounds_us_is_recognised(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], inside: str | None
) -> None:
    assert surroundings(lay_out(tmp_path, files), environ) == inside


def test_a_delegated_v2_cgroup_is_found(tmp_path: Path) -> None:
    scope = "user.slice/user-1000.slice/run-1.scope"
    root = lay_out(
        tmp_path,
        {
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
            "proc/self/cgroup": f"0::/{scope}\n",
            f"sys/fs/cgroup/{scope}/cgroup.controllers": "cpu memory pids\n",
            f"sys/fs/cgroup/{scope}/cgroup.procs": "",
        },
    )
    where = str(root / "sys/fs/cgroup" / scope)
    assert cgroups(root) == Cgroups("v2", where, frozenset({"cpu", "memory", "pids"}), writable=True)


def test_v1_controllers_are_found_beside_an_empty_v2(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/self/mountinfo": (
                "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                "32 23 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
                "33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
            ),
            "proc/self/cgroup": "9:name=systemd:/\n8:pids:/\n4:memory:/job/1\n0::/\n",
            "sys/fs/cgroup/memory/job/1/cgroup.procs": "",
            "sys/fs/cgroup/pids/cgroup.procs": "",
            "sys/fs/cgroup/unified/cgroup.controllers": "",
        },
    )
    where = str(root / "sys/fs/cgroup/memory/job/1")
    assert cgroups(root) == Cgroups("v1", where, frozenset({"memory", "pids"}), writable=True)


def test_a_machine_without_cgroups_has_none(tmp_path: Path) -> None:
    assert cgroups(tmp_path) == Cgroups()


def test_the_state_directory_is_described_and_not_made(tmp_path: Path) -> None:
    home = state_directory({"RINGFENCE_HOME": str(tmp_path / "a" / "b")})
    assert (home.exists, home.writable) == (False, True)
    assert not (tmp_path / "a").exists()


def test_the_mode_of_the_state_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / ".ringfence").mkdir(mode=0o750)
    assert state_directory({"HOME": str(tmp_path)}).mode == 0o750


def test_a_tool_that_is_missing_is_a_fact() -> None:
    tool = try_out.version_of("no-such-tool-ringfence", "--version")
    assert (tool.path, tool.usable, tool.problem) == (None, False, "not installed")


def test_looking_at_this_machine_leaves_its_mounts_and_descriptors_as_they_were() -> None:
    mounts, descriptors = Path("/proc/self/mountinfo").read_text(), len(list(Path("/proc/self/fd").iterdir()))
    facts = gather(lambda: Box(available=False), os.environ)
    assert facts.kernel == os.uname().release
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
