"""What only containers have: an engine between us and them, a client's configuration, an image of somebody's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.container_engine import Engine
from tests.security.conftest import does_not_keep

import ringfence
from ringfence.isolation.docker.backend import DOES_NOT_KEEP

pytestmark = [pytest.mark.guarantee(29), pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
LIMITATIONS = ROOT / "docs" / "limitations" / "docker.md"


@pytest.mark.needs("docker")
def test_the_proxies_of_the_engines_client_reach_no_guest(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxies = {"default": {"httpProxy": "http://ada:hunter2@proxy:3128", "noProxy": "hunter2.internal"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    image = os.environ["RINGFENCE_DOCKER_IMAGE"]
    plain = docker_engine.docker("run", "--rm", "--network=none", "--entrypoint=env", image)
    assert "hunter2" in plain.stdout  # what every other container of this client is given
    look = "import os; print(os.environ, open('/proc/self/environ').read())"
    result = ringfence.run(look, isolation="docker", home=tmp_path / "home")
    assert result.exit_code == 0
    assert "hunter2" not in result.stdout
    assert "ada" not in result.stdout


@pytest.mark.needs("docker")
def test_the_name_servers_of_the_machine_are_told_to_no_guest(docker_engine: Engine, tmp_path: Path) -> None:
    image = os.environ["RINGFENCE_DOCKER_IMAGE"]
    words = ("run", "--rm", "--network=none", "--entrypoint=cat", image, "/etc/resolv.conf")
    told = re.findall(r"^(?:nameserver|search) .+$", docker_engine.docker(*words).stdout, re.MULTILINE)
    assert told  # what every other container is told, network or not
    result = ringfence.run("print(open('/etc/resolv.conf').read())", isolation="docker", home=tmp_path)
    assert result.exit_code == 0
    assert [line for line in told if line in result.stdout] == []


@pytest.mark.needs("docker", "root")
@pytest.mark.parametrize(
    ("code", "mode", "outcome"),
    [
        ("import subprocess; print(1)", "strict", "IsolationUnavailable"),
        ("import subprocess; print(1)", "permissive", "1"),
    ],
)
def test_a_container_that_nobody_here_can_see_is_not_taken_for_one(
    docker_engine: Engine, tmp_path: Path, code: str, mode: str, outcome: str
) -> None:
    """In a pid namespace of its own, an application sees of a container what it would see of one far away: nothing."""
    text = (
        "import ringfence\ntry:\n"
        f"    result = ringfence.run({code!r}, isolation='docker', security_mode={mode!r})\n"
        "    print(result.stdout.strip(), result.isolation.namespaces, result.isolation.notes)\n"
        "except ringfence.RingfenceError as error: print(type(error).__name__)"
    )
    environment = {**os.environ, "RINGFENCE_HOME": str(tmp_path)}
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", text]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    said = done.stdout.split(maxsplit=1)
    assert said[0] == outcome, done.stderr
    if outcome == "1":
        assert "()" in said[1]
        assert "nobody here saw the layers" in said[1]


@pytest.mark.needs("docker")
def test_nothing_of_a_container_can_be_written_but_its_own_directories_even_where_its_image_may_be(
    docker_engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text("[docker]\nreadonly_root = false\n")
    program = "open('/etc/passwd', 'a')"
    result = ringfence.run(program, isolation="docker", home=tmp_path)
    assert "Permission" in result.stderr or "Read-only" in result.stderr


@pytest.mark.skipif(not LIMITATIONS.exists(), reason="this copy of the tests travels without its documents")
def test_what_containers_do_not_keep_is_written_down_where_people_look() -> None:
    text = LIMITATIONS.read_text()
    assert [name for name, why in DOES_NOT_KEEP.items() if name not in text or why not in text] == []


def test_a_promise_is_skipped_for_no_other_reason_than_that_the_box_says_so() -> None:
    assert does_not_keep("docker") is DOES_NOT_KEEP
    assert does_not_keep("native") == does_not_keep("bwrap") == {}
