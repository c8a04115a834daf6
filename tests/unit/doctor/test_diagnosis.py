from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ringfence.doctor.diagnosis import diagnose
from ringfence.doctor.facts import Box, Cgroups, Facts, Home, Tool
from ringfence.doctor.finding import Finding, Health
from ringfence.doctor.report import report
from ringfence.interfaces.cli.doctor import doctor_command
from ringfence.outcome import Layers

LAYERS = Layers(
    namespaces=("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"),
    capabilities_empty=True,
    no_new_privs=True,
    seccomp_filters=2,
    landlock_abi=7,
    cgroup="v2",
    host_uid=1000,
)
GOOD = Facts(
    box=Box(available=True, layers=LAYERS),
    kernel="6.18.1-generic",
    os_id="ubuntu",
    uid=1000,
    sysctl={
        **{f"user.max_{kind}_namespaces": "63000" for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")},
        "kernel.pid_max": "4194304",
        "kernel.apparmor_restrict_unprivileged_userns": "0",
        "dev.tty.legacy_tiocsti": "0",
    },
    landlock_abi=7,
    seccomp_actions=frozenset({"kill_process", "errno", "allow", "log"}),
    cgroups=Cgroups("v2", "/sys/fs/cgroup/x", frozenset({"cpu", "memory", "pids"}), writable=True),
    systemd=True,
    overlay_in_userns=True,
    tmpfs_user_xattr=True,
    bwrap=Tool("/usr/bin/bwrap", "0.11.0", usable=True),
    node=Tool("/usr/bin/node", "22.13.0", usable=True),
    node_strips_types=True,
    bash=Tool("/bin/bash", "5.2", usable=True),
    interpreter="/usr/bin/python3.12",
    home=Home("/home/u/.ringfence", exists=True),
    memory_available_bytes=8 << 30,
    open_files_limit=1 << 20,
    processes_limit=-1,
)
NO_BOX = replace(GOOD, box=Box(available=False, reason="unshare: EPERM"), bwrap=Tool(problem="not installed"))


def finding(facts: Facts, check: str) -> Finding:
    (found,) = [finding for finding in diagnose(facts).findings if finding.id == check]
    return found


def test_a_good_machine_has_nothing_to_fix() -> None:
    diagnosis = diagnose(GOOD)
    assert diagnosis.tier == "native"
    assert [f.id for f in diagnosis.findings if f.status in (Health.WARN, Health.FAIL)] == []
    assert diagnosis.verdict == "code runs isolated here, in the native box"


def test_every_check_has_an_id_of_its_own() -> None:
    ids = [finding.id for finding in diagnose(GOOD).findings]
    assert len(ids) == len(set(ids))


def test_everything_that_is_not_ok_says_what_it_means_and_how_to_fix_it() -> None:
    worst = Facts(
        box=Box(available=False, reason="unshare: EPERM"),
        kernel="4.18.0",
        uid=1000,
        sysctl={
            "user.max_user_namespaces": "0",
            "kernel.apparmor_restrict_unprivileged_userns": "1",
            "kernel.pid_max": "100",
        },
        inside="docker",
        overlay_in_userns=False,
        tmpfs_user_xattr=False,
        home=Home("/x", exists=True, mode=0o755),
        interpreter_unreadable=("/root/python",),
        memory_available_bytes=0,
        open_files_limit=1,
        processes_limit=1,
    )
    for found in diagnose(worst).findings:
        if found.status in (Health.WARN, Health.FAIL):
            assert found.means, found.id
            assert found.fix, found.id


@pytest.mark.parametrize(
    ("kernel", "status"),
    [("5.12.19", Health.FAIL), ("5.13.0", Health.OK), ("6.18-rc1", Health.OK), ("strange", Health.UNKNOWN)],
)
def test_the_kernel_floor_is_5_13(kernel: str, status: Health) -> None:
    assert finding(replace(GOOD, kernel=kernel), "kernel.version").status is status


def test_an_older_kernel_is_told_what_it_lacks() -> None:
    means = finding(replace(GOOD, kernel="6.6.0"), "kernel.version").means
    assert "Landlock scopes" in means
    assert "memory.peak" not in means


def test_no_user_namespaces_at_all_is_found_by_the_sysctl() -> None:
    found = finding(replace(NO_BOX, sysctl={"user.max_user_namespaces": "0"}), "userns.allowed")
    assert found.status is Health.FAIL
    assert "sysctl -w user.max_user_namespaces=65536" in (found.fix or "")


@pytest.mark.parametrize("uid", [0, 1000])
def test_debians_switch_concerns_root_too_whose_workers_have_no_privileges(uid: int) -> None:
    off = {**GOOD.sysctl, "kernel.unprivileged_userns_clone": "0"}
    found = finding(replace(NO_BOX, sysctl=off, uid=uid), "userns.allowed")
    assert found.status is Health.FAIL
    assert "sysctl -w kernel.unprivileged_userns_clone=1" in (found.fix or "")


def test_ubuntus_restriction_gets_a_profile_for_this_very_interpreter() -> None:
    restricted = {**GOOD.sysctl, "kernel.apparmor_restrict_unprivileged_userns": "1"}
    found = finding(replace(NO_BOX, sysctl=restricted), "userns.apparmor")
    assert found.status is Health.FAIL
    assert found.fix == (
        "sudo tee /etc/apparmor.d/ringfence >/dev/null <<'EOF'\n"
        "abi <abi/4.0>,\n"
        "include <tunables/global>\n"
        "\n"
        'profile ringfence "/usr/bin/python3.12" flags=(unconfined) {\n'
        "  userns,\n"
        "  include if exists <local/ringfence>\n"
        "}\n"
        "EOF\n"
        "sudo apparmor_parser -r /etc/apparmor.d/ringfence"
    )


def test_the_restriction_does_not_matter_when_the_box_was_built() -> None:
    restricted = {**GOOD.sysctl, "kernel.apparmor_restrict_unprivileged_userns": "1"}
    assert finding(replace(GOOD, sysctl=restricted), "userns.apparmor").status is Health.OK


def test_bwrap_is_the_tier_when_only_it_works() -> None:
    diagnosis = diagnose(replace(NO_BOX, bwrap=GOOD.bwrap))
    assert diagnosis.tier == "bwrap"
    assert [f for f in diagnosis.findings if f.status is Health.FAIL] == []


def test_bwrap_without_seccomp_is_no_tier() -> None:
    assert diagnose(replace(NO_BOX, bwrap=GOOD.bwrap, seccomp_actions=None)).tier is None


def test_without_delegation_the_limits_warn_with_the_systemd_command() -> None:
    bare = Cgroups("v2", "/sys/fs/cgroup/user.slice", frozenset({"memory", "pids"}), writable=False)
    found = finding(replace(GOOD, cgroups=bare), "cgroup")
    assert found.status is Health.WARN
    assert "systemd-run --user --scope -p Delegate=yes" in (found.fix or "")
    assert "loginctl enable-linger" in (found.fix or "")


@pytest.mark.parametrize("inside", [None, "docker"])
def test_where_v1_is_only_somebody_elses_its_directories_are_to_be_given_away(inside: str | None) -> None:
    foreign = Cgroups("v1", "/sys/fs/cgroup/memory", frozenset())
    fix = finding(replace(GOOD, cgroups=foreign, inside=inside, uid=1000), "cgroup").fix or ""
    assert "sudo chown" in fix
    assert "subtree_control" not in fix
    mounted_so = replace(foreign, read_only=True)
    fix = finding(replace(GOOD, cgroups=mounted_so, inside="docker", uid=1000), "cgroup").fix or ""
    assert "read-only" in fix


def test_delegation_without_memory_is_not_enough() -> None:
    partly = Cgroups("v2", "/x", frozenset({"pids"}), writable=True)
    found = finding(replace(GOOD, cgroups=partly), "cgroup")
    assert (found.status, found.found) == (Health.WARN, "v2, delegated without memory")


@pytest.mark.parametrize(
    ("inside", "needle"),
    [
        ("docker", "--security-opt systempaths=unconfined"),
        ("podman", "unmask=ALL"),
        ("kubernetes", "procMount: Unmasked"),
        ("wsl1", "wsl --set-version"),
        ("gvisor", "runsc"),
    ],
)
def test_a_container_without_room_is_told_how_to_start_it(inside: str, needle: str) -> None:
    found = finding(replace(NO_BOX, inside=inside), "inside")
    assert found.status is Health.FAIL
    assert needle in (found.fix or "")


def test_a_container_in_which_a_box_fits_is_fine() -> None:
    assert finding(replace(GOOD, inside="docker"), "inside").status is Health.OK


@pytest.mark.parametrize(
    ("node", "strips_types", "status"),
    [
        (Tool(problem="not installed"), False, Health.WARN),
        (Tool("/usr/bin/node", "20.20.2", usable=True), False, Health.WARN),
        (Tool("/usr/bin/node", "22.13.0", usable=True), True, Health.OK),
    ],
)
def test_a_node_that_strips_types_is_told_from_one_that_does_not(
    node: Tool, strips_types: bool, status: Health
) -> None:
    assert finding(replace(GOOD, node=node, node_strips_types=strips_types), "runtime.node").status is status


@pytest.mark.parametrize(
    "home",
    [Home("/h", exists=True, mode=0o755), Home("/h", writable=False), Home("/h", exists=True, owned=False)],
)
def test_a_state_directory_that_others_can_touch_warns(home: Home) -> None:
    assert finding(replace(GOOD, home=home), "home").status is Health.WARN


def test_the_deployment_list_is_judged_on_what_was_observed() -> None:
    leaky = Layers(namespaces=("user",), seccomp_filters=0, host_uid=0, cgroup="none")
    facts = replace(GOOD, box=Box(available=True, layers=leaky))
    statuses = {f"S1-{n}": finding(facts, f"S1-{n}").status for n in range(139, 151)}
    assert statuses == {
        "S1-139": Health.UNKNOWN,
        "S1-140": Health.FAIL,
        "S1-141": Health.FAIL,
        "S1-142": Health.FAIL,
        "S1-143": Health.WARN,
        **{f"S1-{n}": Health.UNKNOWN for n in range(144, 151)},
    }


def test_nothing_on_the_deployment_list_is_ok_without_a_box_to_observe() -> None:
    assert {finding(NO_BOX, f"S1-{n}").status for n in range(139, 151)} == {Health.UNKNOWN}


def test_the_report_says_the_verdict_first_and_colours_only_when_asked() -> None:
    plain = report(diagnose(NO_BOX), colour=False)
    assert plain.startswith("ringfence doctor: code cannot run isolated here: ")
    assert "\x1b" not in plain
    assert "\x1b[31m" in report(diagnose(NO_BOX), colour=True)


@pytest.mark.parametrize(("facts", "code"), [(GOOD, 0), (NO_BOX, 7)])
def test_the_exit_code_says_whether_code_can_run(facts: Facts, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_command(["--json"], look=lambda: facts) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["isolated"] is (code == 0)
    assert {"id", "title", "status", "found", "means", "fix"} == set(answer["checks"][0])


@pytest.mark.parametrize("kind", ["wasi", "microvm"])
def test_a_kind_of_box_that_is_not_there_is_listed_with_the_reason(kind: str) -> None:
    found = finding(GOOD, f"box.{kind}")
    assert found.status is Health.ABSENT
    assert found.found.startswith("not available: ")
    assert diagnose(GOOD).is_ready
