"""Whose a container is, and whose is left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ringfence.budgets.owner import is_gone, this_process
from ringfence.isolation.docker.engine import Listed
from ringfence.isolation.docker.reaper import (
    HOME_LABEL,
    OWNER_LABEL,
    home_id,
    labels,
    orphans,
    own_directory,
    read_owner,
    write_owner,
)


def test_an_owner_is_read_back_as_it_was_written() -> None:
    assert read_owner(write_owner(this_process())) == this_process()


def test_what_nobody_of_ours_wrote_is_no_owner() -> None:
    for word in ("", "me", write_owner(this_process()) + "_1", "../" + write_owner(this_process())):
        assert read_owner(word) is None


def test_only_the_containers_of_the_dead_are_orphans() -> None:
    me = this_process()
    dead, earlier = replace(me, started=me.started + 1), replace(me, boot_id="0" * 36)
    elsewhere = replace(me, pid_namespace="pid:[1]", started=1)
    listed = [
        Listed("mine", {OWNER_LABEL: write_owner(me)}),
        Listed("dead", {OWNER_LABEL: write_owner(dead)}),
        Listed("before the reboot", {OWNER_LABEL: write_owner(earlier)}),
        Listed("in another container", {OWNER_LABEL: write_owner(elsewhere)}),
        Listed("nobody's", {}),
        Listed("unreadable", {OWNER_LABEL: "x"}),
    ]
    assert orphans(listed, is_gone) == ["dead", "before the reboot"]


def test_homes_are_told_apart_and_a_home_is_known_again(tmp_path: Path) -> None:
    assert home_id(tmp_path / "a") != home_id(tmp_path / "b")
    assert home_id(tmp_path / "a") == home_id(tmp_path / "x" / ".." / "a")
    assert set(labels(tmp_path)) == {HOME_LABEL, OWNER_LABEL}


def test_the_directory_of_this_process_is_nobody_elses(tmp_path: Path) -> None:
    assert own_directory(tmp_path).stat().st_mode & 0o777 == 0o700
