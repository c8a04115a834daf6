"""The service's own container, with exactly the options of the compose file: a box fits in, and not without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests import container_engine

pytestmark = pytest.mark.needs("docker")

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "import json, os; print(json.dumps([os.getuid(), sorted(os.listdir('/workspace'))]))"


def manager() -> dict[str, Any]:
    files: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/docker-compose.yml").read_text())
    found: dict[str, Any] = files["services"]["sandbox-manager"]
    return found


def ran(security: list[str], *words: str) -> tuple[int, str, str]:
    """Run the command in a container that is held as the compose file says, but for its security options."""
    service = manager()
    options = ["--rm", "--network=none", "--init", "--read-only", f"--user={service['user']}"]
    options += [f"--cap-drop={name}" for name in service["cap_drop"]]
    options += [f"--security-opt={word}" for word in security]
    options += [f"--tmpfs={place}" for place in service["tmpfs"]]
    options += [f"--volume={ROOT / 'src'}:/opt/src:ro", "--env=PYTHONPATH=/opt/src", "--env=RINGFENCE_HOME=/tmp/home"]
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
