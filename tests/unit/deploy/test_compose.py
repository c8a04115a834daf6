"""The compose files of 001 §7.1, read as an independent program merges them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ringfence.service.settings import settings_from

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
VARIANTS = [(), ("rootless",), ("socket",)]


def merged(*more: str) -> dict[str, Any]:
    """Return what `podman-compose` makes of the files; it refuses what is no compose file."""
    files = [DEPLOY / "compose/docker-compose.yml", *(DEPLOY / f"compose/docker-compose.{name}.yml" for name in more)]
    words = [word for file in files for word in ("-f", str(file))]
    done = subprocess.run(
        # it asks podman for its version, and for nothing else to merge files: an answer will do where there is none
        [sys.executable, "-m", "podman_compose", "--podman-path", "/bin/echo", *words, "config"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "DOCKER_GROUP": "999"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


@pytest.mark.parametrize("more", VARIANTS)
def test_the_manager_has_no_privilege_of_its_own(more: tuple[str, ...]) -> None:
    manager = merged(*more)["services"]["sandbox-manager"]
    assert manager["cap_drop"] == ["ALL"]
    assert manager["read_only"] is True
    assert not manager["user"].startswith(("0", "root"))
    assert "no-new-privileges:true" in manager["security_opt"]
    assert "privileged" not in manager
    assert manager["deploy"]["resources"]["limits"]["memory"] == "1G"


def test_the_network_leads_nowhere_and_the_workspaces_stay() -> None:
    files = merged()
    assert files["networks"] == {"sandbox-network": {"driver": "bridge", "internal": True}}
    assert files["services"]["sandbox-manager"]["networks"] == ["sandbox-network"]
    assert "sandbox-workspaces" in files["volumes"]
    assert "sandbox-workspaces:/workspaces" in files["services"]["sandbox-manager"]["volumes"]
    assert files["services"]["sandbox-manager"]["build"]["dockerfile"] == "deploy/Dockerfile"


@pytest.mark.parametrize(("more", "handed_out"), [((), False), (("rootless",), False), (("socket",), True)])
def test_only_who_asks_for_it_hands_out_the_socket_of_the_hosts_engine(more: tuple[str, ...], handed_out: bool) -> None:
    sources = [volume for one in merged(*more)["services"].values() for volume in one.get("volumes", ())]
    assert any("docker.sock:" in volume for volume in sources) is handed_out


@pytest.mark.parametrize("more", VARIANTS)
def test_the_manager_has_an_engines_command_where_it_is_to_use_one(more: tuple[str, ...]) -> None:
    build = merged(*more)["services"]["sandbox-manager"]["build"]
    assert build.get("args", []) == (["WITH_ENGINE_COMMAND=yes"] if more else [])
    assert "${WITH_ENGINE_COMMAND:+" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("more", VARIANTS)
def test_the_service_understands_every_variable_it_is_given(more: tuple[str, ...]) -> None:
    environment = merged(*more)["services"]["sandbox-manager"]["environment"]
    settings = settings_from({}, "nowhere", environment)
    assert (settings.pool_size, settings.network) == (10, "none")
    assert settings.ceilings() == {"memory_bytes": 512 * 1024 * 1024, "cpus": 1.0}
    assert settings.isolation == ("docker" if more else None)
