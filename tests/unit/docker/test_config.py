"""What an operator may say about the engine, and what he is told when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest
from ringfence.isolation.docker.config import engine_settings
from ringfence.isolation.docker.settings import EngineSettings


def test_without_a_word_it_is_docker_with_our_own_image(tmp_path: Path) -> None:
    assert engine_settings(tmp_path, {}) == EngineSettings()


def test_the_file_is_read_the_environment_stands_above_it_and_the_argument_above_both(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[docker]\ncommand = ["podman", "--log-level=error"]\nurl = "unix:///run/a.sock"\nimage = "mine:1"\n'
        'runtime = "runsc"\nseccomp = "/etc/s.json"\nreadonly_root = false\nremote = true\n'
    )
    written = EngineSettings(
        command=("podman", "--log-level=error"),
        url="unix:///run/a.sock",
        image="mine:1",
        runtime="runsc",
        seccomp=Path("/etc/s.json"),
        readonly_root=False,
        remote=True,
    )
    assert engine_settings(tmp_path, {}) == written
    above = engine_settings(tmp_path, {"RINGFENCE_DOCKER_URL": "tcp://b:1", "RINGFENCE_DOCKER_COMMAND": "nerdctl -n x"})
    assert (above.url, above.command, above.image) == ("tcp://b:1", ("nerdctl", "-n", "x"), "mine:1")
    assert engine_settings(tmp_path, {"RINGFENCE_DOCKER_URL": "tcp://b:1"}, url="ssh://c").url == "ssh://c"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("docker = 1", "docker"),
        ("[docker]\nimagge = 'x'", "docker.imagge"),
        ("[docker]\ncommand = 1", "docker.command"),
        ("[docker]\nimage = 1", "docker.image"),
        ("[docker]\nimage = '--privileged'", "docker.image"),
        ("[docker]\nseccomp = 'here.json'", "docker.seccomp"),
        ("[docker]\nremote = 'yes'", "docker.remote"),
        ("[docker", "config.toml"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(InvalidRequest, match=named):
        engine_settings(tmp_path, {})
