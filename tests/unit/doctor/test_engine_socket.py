"""What the doctor says of a process that could ask an engine of root's for anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.doctor.checks_deployment import deployment
from ringfence.doctor.facts import Box, Facts
from ringfence.doctor.finding import Finding, Health
from ringfence.doctor.gather import engine_sockets

NOBODY = Facts(box=Box(available=True), uid=1000)


def told(facts: Facts) -> Finding:
    return next(finding for finding in deployment(facts) if finding.id == "S1-128")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A file system on which an engine listens."""
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "run/docker.sock"))
        yield tmp_path


def test_a_socket_of_root_that_may_be_written_is_found(root: Path) -> None:
    assert engine_sockets(root, {}) == (("/run/docker.sock",) if os.geteuid() == 0 else ())


def test_a_file_that_is_no_socket_is_no_engine(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/docker.sock").touch()
    assert engine_sockets(tmp_path, {}) == ()


@pytest.mark.needs("root")
def test_one_that_the_environment_names_is_found_and_a_rootless_one_is_not(root: Path) -> None:
    (root / "run/docker.sock").rename(root / "run/mine.sock")
    assert engine_sockets(root, {"DOCKER_HOST": "unix:///run/mine.sock"}) == ("/run/mine.sock",)
    os.chown(root / "run/mine.sock", 1000, 1000)
    assert engine_sockets(root, {"DOCKER_HOST": "unix:///run/mine.sock"}) == ()


@pytest.mark.needs("root")
def test_one_that_ringfence_itself_is_told_to_use_is_found(root: Path) -> None:
    (root / "run/docker.sock").rename(root / "run/mine.sock")
    home = root / "home"
    home.mkdir()
    assert engine_sockets(root, {"RINGFENCE_HOME": str(home)}) == ()
    named = {"RINGFENCE_HOME": str(home), "RINGFENCE_DOCKER_URL": "unix:///run/mine.sock"}
    assert engine_sockets(root, named) == ("/run/mine.sock",)
    (home / "config.toml").write_text('[docker]\nurl = "unix:///run/mine.sock"\n')
    assert engine_sockets(root, {"RINGFENCE_HOME": str(home)}) == ("/run/mine.sock",)
    (home / "config.toml").write_text('[docker]\nurl = "nonsense"\n')  # which another check tells
    assert engine_sockets(root, {"RINGFENCE_HOME": str(home)}) == ()


def test_who_could_become_root_through_it_is_warned() -> None:
    reached = replace(NOBODY, engine_sockets=("/run/docker.sock",))
    assert told(NOBODY).status is Health.OK
    assert told(reached).status is Health.WARN
    assert told(replace(reached, uid=0, inside="docker")).status is Health.WARN
    assert told(replace(reached, uid=0)).status is Health.OK
