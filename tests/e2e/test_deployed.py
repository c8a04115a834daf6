"""The service's own container, with exactly the options of the compose file: a box fits in, and not without them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import container_engine

pytestmark = pytest.mark.needs("docker")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import json, os; print(json.dumps([os.getuid(), sorted(os.listdir('/workspace'))]))"


def manager(variant: str = "") -> dict[str, Any]:
    files: dict[str, Any] = yaml.safe_load((ROOT / f"deploy/compose/docker-compose{variant}.yml").read_text())
    found: dict[str, Any] = files["services"]["sandbox-manager"]
    return found


def ran(security: list[str], *words: str, more: Sequence[str] = ()) -> tuple[int, str, str]:
    """Run the command in a container that is held as the compose file says, but for its security options."""
    service = manager()
    options = ["--rm", "--network=none", "--init", "--read-only", f"--user={service['user']}"]
    options += [f"--cap-drop={name}" for name in service["cap_drop"]]
    options += [f"--security-opt={word}" for word in security]
    options += [f"--tmpfs={place}" for place in service["tmpfs"]]
    options += [f"--volume={ROOT / 'src'}:/opt/src:ro", "--env=PYTHONPATH=/opt/src", "--env=RINGFENCE_HOME=/tmp/home"]
    options += more
    image = container_engine.sandbox_image()
    command = ["python3", "-B", "-m", "ringfence", *words]
    done = container_engine.engine().docker("run", *options, "--entrypoint=", image, *command)
    return done.returncode, done.stdout, done.stderr


def test_a_box_fits_into_the_container_of_the_compose_file() -> None:
    code, out, err = ran(manager()["security_opt"], "run", "--json", "-c", PROGRAM)
    assert code == 0, err
    result = json.loads(out)
    assert json.loads(result["stdout"]) == [1000, ["artifacts", "code", "data", "inputs", "output", "work"]]
    assert result["backend"] == "native"
    assert result["isolation"]["host_uid"] > 0
    assert result["isolation"]["capabilities_empty"]


def test_without_its_options_nothing_runs_and_the_doctor_says_which() -> None:
    code, out, err = ran(["no-new-privileges:true"], "run", "-c", "print('ran')")
    assert (code, out) == (7, ""), err
    assert "systempaths=unconfined" in ran(["no-new-privileges:true"], "doctor")[1]


@pytest.mark.needs("root")
@pytest.mark.parametrize("sees", [True, False])
def test_with_the_hosts_engine_the_manager_sees_its_containers_or_refuses_and_says_why(
    tmp_path: Path, sees: bool
) -> None:
    socket = container_engine.engine().url.removeprefix("unix://")
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 10001, 10001)
    service = manager(".socket")
    options = ["--group-add=0", f"--volume={socket}:/var/run/docker.sock", f"--volume={home}:{home}"]
    options += [f"--volume={shutil.which('docker')}:/usr/local/bin/docker:ro", f"--env=RINGFENCE_HOME={home}"]
    options += [f"--env=RINGFENCE_DOCKER_URL={service['environment']['RINGFENCE_DOCKER_URL']}"]
    options += [f"--env=RINGFENCE_DOCKER_IMAGE={container_engine.sandbox_image()}"]
    options += [f"--pid={service['pid']}"] if sees else []
    words = ("run", "--isolation", "docker", "--json", "-c", "print(6 * 7)")
    code, out, err = ran(manager()["security_opt"], *words, more=options)
    answer = json.loads(out)
    if sees:
        assert (code, answer["stdout"], answer["backend"]) == (0, "42\n", "docker"), err
    else:
        assert (code, answer["reason"]) == (7, "isolation_unavailable")
        assert "nobody here saw the layers" in answer["error"]
        assert "pid namespace" in answer["error"]
