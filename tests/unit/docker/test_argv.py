"""The command line of a container: what holds a guest is in it, whatever is asked for."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.isolation.docker.argv import OWN_TASKS, Plan, mounts_of, run_argv
from ringfence.isolation.docker.settings import EngineSettings
from ringfence.outcome import Mount
from ringfence.ports import WorkerSpec

SPEC = WorkerSpec(disk_bytes=1 << 20, inodes=100, open_files=64, file_bytes=1 << 16, pids=32)
PLAN = Plan(
    name="rf-1",
    spec=SPEC,
    seccomp="/srv/seccomp.json",
    memory_bytes=256 << 20,
    cpus=0.5,
    inputs=Path("/home/ring/boxes/rf-1/inputs"),
    labels={"io.ringfence.home": "h"},
    program=("python3", "-I", "-c", "pass"),
)
HELD = {
    "--network=none",
    "--ipc=private",
    "--cgroupns=private",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--security-opt=seccomp=/srv/seccomp.json",
    f"--pids-limit={32 + OWN_TASKS}",
    f"--memory={256 << 20}",
    f"--memory-swap={256 << 20}",
    "--cpus=0.5",
    "--ulimit=nofile=64:64",
    f"--ulimit=fsize={1 << 16}:{1 << 16}",
    "--ulimit=core=1:1",
    "--user=1000:1000",
    "--workdir=/workspace/work",
    "--read-only",
    "--log-driver=none",
    "--hostname=rf-1",
    "--label=io.ringfence.home=h",
    "--rm",
    "--pull=never",
}


def test_every_flag_that_holds_a_guest_is_there() -> None:
    assert set(run_argv(EngineSettings(), PLAN)) >= HELD


@pytest.mark.parametrize("never", ["--privileged", "--device", "--cap-add", "--pid", "--volume", "-v", "--userns=host"])
def test_nothing_that_opens_the_host_is_ever_there(never: str) -> None:
    assert not any(word == never or word.startswith(never + "=") for word in run_argv(EngineSettings(), PLAN))


def test_the_workspace_is_exactly_three_mounts_and_only_the_inputs_are_of_the_host() -> None:
    words = run_argv(EngineSettings(), PLAN)
    mounted = [word for word in words if word.startswith(("--tmpfs=", "--mount="))]
    assert [word for word in mounted if "/workspace" in word] == [
        "--mount=type=bind,source=/home/ring/boxes/rf-1/inputs,target=/workspace/inputs,readonly",
        "--tmpfs=/workspace/work:rw,exec,nosuid,nodev,size=1048576,nr_inodes=100,mode=0700,uid=1000,gid=1000",
        "--tmpfs=/workspace/artifacts:rw,noexec,nosuid,nodev,size=1048576,nr_inodes=100,mode=0700,uid=1000,gid=1000",
    ]
    assert [word for word in mounted if "source=" in word] == [mounted[3]]
    assert mounts_of(PLAN) == (
        Mount("/home/ring/boxes/rf-1/inputs", "/workspace/inputs", "ro"),
        Mount("tmpfs", "/workspace/work", "rw"),
        Mount("tmpfs", "/workspace/artifacts", "rw"),
    )


def test_what_the_operator_shows_is_seen_for_reading_and_told() -> None:
    plan = replace(PLAN, shown=(("/opt/arm", "/mnt/toolchain"),))
    assert "--mount=type=bind,source=/opt/arm,target=/mnt/toolchain,readonly" in run_argv(EngineSettings(), plan)
    assert mounts_of(plan)[3:] == (Mount("/opt/arm", "/mnt/toolchain", "ro"),)


def test_every_directory_that_can_be_written_has_a_bound_on_bytes_and_on_files() -> None:
    for word in run_argv(EngineSettings(), replace(PLAN, inputs=None)):
        if word.startswith("--tmpfs="):
            options = word.partition(":")[2].split(",")
            assert {"nosuid", "nodev", "nr_inodes=100"} <= set(options)
            assert any(option.startswith("size=") for option in options)


def test_a_guest_gets_no_more_than_whoever_asks_has_himself() -> None:
    words = run_argv(EngineSettings(), replace(PLAN, own_limits={"nofile": 70, "fsize": 9, "sigpending": 5}))
    assert {"--ulimit=nofile=64:64", "--ulimit=fsize=9:9", "--ulimit=sigpending=5:5"} <= set(words)


def test_under_gvisor_the_init_is_another_user_than_the_guest_and_has_what_it_takes_to_become_it() -> None:
    words = run_argv(EngineSettings(runtime="runsc"), PLAN)
    assert {"--runtime=runsc", "--user=0:0", "--cap-drop=ALL"} <= set(words)
    added = {word.removeprefix("--cap-add=") for word in words if word.startswith("--cap-add=")}
    assert added == {"SETUID", "SETGID", "SETPCAP", "KILL"}


def test_an_engine_elsewhere_is_given_no_path_of_this_machine() -> None:
    words = run_argv(EngineSettings(url="tcp://far:2376"), replace(PLAN, inputs=None))
    assert words[:4] == ("docker", "--host", "tcp://far:2376", "run")
    assert not any("/home/ring" in word for word in words)


@given(st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=30))
def test_no_name_of_a_directory_adds_an_option_to_its_mount(name: str) -> None:
    path = Path("/home") / name
    words = run_argv(EngineSettings(), replace(PLAN, inputs=path))
    (mount,) = (word for word in words if word.startswith("--mount="))
    # as the engines read it: one record of comma-separated values
    (fields,) = csv.reader(io.StringIO(mount.removeprefix("--mount="), newline=""), strict=True)
    assert fields == ["type=bind", f"source={path}", "target=/workspace/inputs", "readonly"]


def test_podman_and_nerdctl_are_spoken_to_in_their_own_words() -> None:
    podman = run_argv(EngineSettings(command=("podman", "--log-level=error"), url="unix:///run/podman.sock"), PLAN)
    assert podman[:5] == ("podman", "--log-level=error", "--url", "unix:///run/podman.sock", "run")
    assert (
        '--mount=type=volume,target=/workspace/work,volume-opt=type=tmpfs,volume-opt=device=tmpfs,"volume-opt=o=exec,'
        'nosuid,nodev,size=1048576,nr_inodes=100,mode=0700,uid=1000,gid=1000"'
    ) in podman
    nerdctl = run_argv(EngineSettings(command=("/usr/local/bin/nerdctl",), url="unix:///run/c.sock"), PLAN)
    assert nerdctl[:3] == ("/usr/local/bin/nerdctl", "--address", "unix:///run/c.sock")
    assert "--no-healthcheck" not in nerdctl


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": ()},
        {"command": ("-H", "x")},
        {"image": "--privileged"},
        {"image": ""},
        {"image": "a b"},
        {"runtime": "--privileged"},
        {"url": "--tls"},
        {"url": "/var/run/docker.sock"},
    ],
)
def test_a_word_that_would_be_read_as_an_option_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        EngineSettings(**wrong)  # type: ignore[arg-type]
