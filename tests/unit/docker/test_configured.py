"""Which engine a home uses, as its file, the environment and a caller say."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest
from ringfence.isolation.docker.configured import engine_settings
from ringfence.isolation.docker.settings import EngineSettings


def home_with(path: Path, text: str) -> Path:
    (path / "config.toml").write_text(text)
    return path


def test_a_home_that_says_nothing_uses_the_docker_command_as_it_is(tmp_path: Path) -> None:
    assert engine_settings(tmp_path, {}) == EngineSettings()


def test_the_environment_stands_above_the_file_and_the_caller_above_both(tmp_path: Path) -> None:
    home = home_with(
        tmp_path, '[docker]\ncommand = ["podman"]\nurl = "unix:///a"\nimage = "mine:1"\nreadonly_root = false\n'
    )
    settings = engine_settings(home, {"RINGFENCE_DOCKER_IMAGE": "theirs:2", "RINGFENCE_DOCKER_COMMAND": "sudo nerdctl"})
    assert (settings.command, settings.url, settings.image, settings.readonly_root) == (
        ("sudo", "nerdctl"),
        "unix:///a",
        "theirs:2",
        False,
    )
    assert engine_settings(home, {}, "unix:///b").url == "unix:///b"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("docker = 1", "docker: must be a section"),
        ("[docker]\nimages = 'x'", "docker.images"),
        ("[docker]\nimage = ''", "docker.image"),
        ("[docker]\nimage = '--privileged'", "docker.image"),
        ("[docker]\ncommand = []", "docker.command"),
        ("[docker]\ncommand = [1]", "docker.command"),
        ("[docker]\nseccomp = 'relative.json'", "docker.seccomp"),
        ("[docker]\nreadonly_root = 'yes'", "docker.readonly_root"),
        ("[docker", "config.toml"),
    ],
)
def test_what_is_no_engine_is_refused_and_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        engine_settings(home_with(tmp_path, text), {})


def test_a_variable_that_is_no_switch_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="RINGFENCE_DOCKER_READONLY_ROOT"):
        engine_settings(tmp_path, {"RINGFENCE_DOCKER_READONLY_ROOT": "perhaps"})
