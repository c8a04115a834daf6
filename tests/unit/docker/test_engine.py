"""Questions to the command of an engine, and what is made of its answers; here a script says what one said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.engine import Engine
from ringfence.isolation.docker.settings import EngineSettings


def engine(tmp_path: Path, script: str, *, url: str | None = None, patience: float = 10.0) -> Engine:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Engine(EngineSettings(command=(str(program),), url=url), patience=patience)


@pytest.mark.parametrize(
    ("url", "context", "remote"),
    [
        ("unix:///run/docker.sock", "", False),
        ("npipe:////./pipe/docker_engine", "", False),
        ("tcp://127.0.0.1:2375", "", True),
        ("ssh://far", "", True),
        (None, "unix:///var/run/docker.sock", False),
        (None, "tcp://far:2376", True),
    ],
)
def test_an_address_says_whether_an_engine_is_here(
    tmp_path: Path, url: str | None, context: str, *, remote: bool
) -> None:
    assert engine(tmp_path, f"echo '{context}'", url=url).is_remote() is remote


def test_the_operators_word_stands_above_the_address(tmp_path: Path) -> None:
    settings = EngineSettings(url="unix:///mnt/desktop.sock", remote=True)
    assert Engine(settings).is_remote()


def test_an_answer_that_does_not_come_is_a_hang(tmp_path: Path) -> None:
    with pytest.raises(IsolationUnavailable) as refusal:
        engine(tmp_path, "exec sleep 100", patience=0.2).version()
    assert refusal.value.reason == "engine_hung"


@pytest.mark.parametrize(("said", "fine"), [("28.2.2", True), ("20.10.24+dfsg1", True), ("19.03.5", False)])
def test_a_version_is_compared_as_numbers(tmp_path: Path, said: str, *, fine: bool) -> None:
    asked = engine(tmp_path, f"echo {said}")
    if fine:
        assert asked.version() == said
        return
    with pytest.raises(IsolationUnavailable) as refusal:
        asked.version()
    assert refusal.value.reason == "engine_too_old"


def test_what_a_container_shares_is_read_off_its_configuration(tmp_path: Path) -> None:
    form = {
        "Id": "abc",
        "State": {"Pid": 7},
        "Image": "1234",  # as podman writes it
        "HostConfig": {"NetworkMode": "none", "PidMode": "host", "IpcMode": "container:x", "UTSMode": ""},
        "Mounts": [{"Type": "volume", "Destination": "/data"}],
    }
    (tmp_path / "form").write_text(json.dumps([form]))
    seen = engine(tmp_path, f"cat {tmp_path}/form").container("abc")
    assert (seen.pid, seen.image_id) == (7, "sha256:1234")
    assert set(seen.own_namespaces) == {"mnt", "net", "uts", "cgroup"}
    assert seen.mounted == ("/data",)


@pytest.mark.parametrize("said", ["", "[]", "{", '[{"Id": "abc"}]', '[{"Id": 1, "State": {"Pid": "x"}}]'])
def test_an_answer_that_describes_nothing_is_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / "form").write_text(said)
    with pytest.raises(IsolationUnavailable):
        engine(tmp_path, f"cat {tmp_path}/form").container("abc")


def test_a_container_that_is_gone_already_is_as_good_as_removed(tmp_path: Path) -> None:
    engine(tmp_path, "echo 'Error response from daemon: No such container: x' >&2; exit 1").remove(["x"])
    with pytest.raises(IsolationUnavailable, match="in use"):
        engine(tmp_path, "echo 'Error: x is in use' >&2; exit 1").remove(["x"])
