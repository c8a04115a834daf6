"""Which runsc there is, told by what it prints; one that will not do is refused in one line with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.isolation.gvisor import runsc

OLD_FLAGS = """  -host-uds value
    \tcontrols permission to access host Unix-domain sockets. Values: none|open|create|all, default: none
  -platform string
    \tspecifies which platform to use: ptrace (default), kvm. (default "ptrace")
"""
NEW_FLAGS = """  -directfs
    \tdirectly access the container filesystems from the sentry. (default true)
  -platform string
    \tspecifies which platform to use: systrap (default), ptrace, kvm. (default "systrap")
"""


@pytest.mark.parametrize(
    ("said", "day"),
    [
        ("runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n", 20221219),
        ("runsc version release-20231009.0\nspec: 1.1.0-rc.1\n", 20231009),
        ("runsc version release-20260504.0-12-gabcdef\n", 20260504),
        ("runsc version VERSION_MISSING\n", None),
        ("", None),
    ],
)
def test_the_day_of_a_release_is_read_from_what_it_says(said: str, day: int | None) -> None:
    assert runsc.read_version(said) == day


def test_guests_run_by_systrap_where_there_is_it_and_never_by_kvm() -> None:
    assert (runsc.read_platform(OLD_FLAGS), runsc.read_platform(NEW_FLAGS)) == ("ptrace", "systrap")
    assert runsc.read_platform("") == "ptrace"


def test_options_are_read_by_name() -> None:
    assert runsc.read_flags(OLD_FLAGS) == {"host-uds", "platform"}
    assert runsc.read_flags(NEW_FLAGS) == {"directfs", "platform"}


def program(where: Path, *lines: str) -> str:
    where.write_text("\n".join(("#!/bin/sh", *lines, "")))
    where.chmod(0o755)
    return str(where)


def test_a_machine_without_runsc_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runsc, "_SEARCHED", "/nowhere")
    with pytest.raises(IsolationUnavailable, match="runsc is not installed") as caught:
        runsc.find()
    assert "apt-get install runsc" in str(caught.value.fix)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["echo runsc version release-20200219.0"], "older than 20221219"),
        (["echo hello"], "does not say which release"),
        (["exit 1"], "does not say which release"),
    ],
)
def test_a_runsc_that_will_not_do_is_refused_in_one_line(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(IsolationUnavailable, match=reason) as caught:
        runsc.find(program(tmp_path / "runsc", *lines))
    assert caught.value.fix
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsolationUnavailable, match="does not run"):
        runsc.find(str(tmp_path / "nothing"))
