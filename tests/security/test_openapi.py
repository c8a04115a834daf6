"""Attacks the service with whatever its own document allows and forbids: schemathesis over every operation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told
from tests.conftest import SOAK
from tests.http_service import Service, serving

pytestmark = [pytest.mark.guarantee(14), pytest.mark.once]

EXAMPLES = 100 if SOAK else 4
# A schema says what a request looks like; whether a cursor was ever given out, a grant exceeds the policy or a path
# can be a file's name is said by an answer that the document has too.
ANSWERS_TO_VALID = ["2xx", "3xx", "400", "401", "403", "404", "409", "413", "422", "429", "503"]

NO_WAITING = '"query.wait_ms" = 0\n'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("openapi")) as running:
        told(running.home, "key", "create")
        yield running


def attack(service: Service, tmp_path: Path, *words: str, parameters: str = "") -> None:
    config = tmp_path / "schemathesis.toml"
    checks = f"[checks.positive_data_acceptance]\nexpected-statuses = {ANSWERS_TO_VALID}\n"
    config.write_text(f"[parameters]\n{NO_WAITING}{parameters}\n{checks}")
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config)),
            *(
                "run",
                f"http://127.0.0.1:{service.port}/openapi.json",
                "--header",
                f"Authorization: Bearer {service.key}",
            ),
            *("--seed", "1", "--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing"),
            *("--checks", "all", "--no-color", *words),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert service.ask("GET", "/sandbox/health", key=None).json == {"status": "ok"}
    assert "failed with" not in "".join(service.said)


@pytest.mark.timeout(3600 if SOAK else 300)
def test_nothing_that_the_document_allows_or_forbids_breaks_the_service(service: Service, tmp_path: Path) -> None:
    attack(service, tmp_path, "--exclude-path-regex", "key_id")


@pytest.mark.needs("native")
@pytest.mark.timeout(3600 if SOAK else 300)
def test_nor_does_it_where_there_is_something_to_ask_about(service: Service, tmp_path: Path) -> None:
    body = {"project_id": "p", "exec": {"kind": "python", "code": "print(1)"}, "inputs": []}
    made = service.ask("POST", "/sandbox/execs", body)
    assert made.status == 201, made.body
    named = f'"path.exec_id" = "{made.json["exec_id"]}"\n"path.evidence_id" = "{made.json["exec_id"]}"\n'
    attack(service, tmp_path, "--include-path-regex", "exec_id|evidence_id", parameters=named)


@pytest.mark.timeout(3600 if SOAK else 300)
def test_nor_does_revoking_keys(service: Service, tmp_path: Path) -> None:
    # last: it finds out which keys there are, and revokes the one it came with
    attack(service, tmp_path, "--include-path-regex", "key_id")


def test_every_operation_says_who_may_call_and_how_it_refuses(service: Service) -> None:
    document = service.ask_socket("GET", "/openapi.json").json
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path != "/sandbox/health":
                assert operation["security"] == [{"ApiKey": []}], (method, path)
            for status, answer in operation["responses"].items():
                if status.startswith(("4", "5")):
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)


def test_every_bound_is_written_as_readers_of_the_document_know_it(service: Service) -> None:
    document = service.ask_socket("GET", "/openapi.json").json
    unknown = {"gt", "ge", "lt", "le", "min_length", "max_length", "multiple_of"}
    pending: list[Any] = [document["paths"], document["components"]]
    while pending:
        here = pending.pop()
        if isinstance(here, dict):
            assert not {name for name in unknown & here.keys() if not isinstance(here[name], dict)}, here
            pending += here.values()
        elif isinstance(here, list):
            pending += here
    idle = document["components"]["schemas"]["ProcessBody"]["properties"]["idle_timeout_ms"]["anyOf"][0]
    assert (idle["type"], idle["minimum"]) == ("number", 1000)
