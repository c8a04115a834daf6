"""Attacks the routes of workspaces where there is a project and a snapshot to ask about."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import SOAK
from tests.http_service import Service, serving
from tests.security.test_openapi import attack

pytestmark = [pytest.mark.guarantee(14), pytest.mark.once]

ROOT = "/sandbox/workspaces"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("openapi-workspaces")) as running:
        yield running


@pytest.mark.timeout(3600 if SOAK else 300)
def test_nothing_that_the_document_allows_or_forbids_breaks_a_workspace(service: Service, tmp_path: Path) -> None:
    assert service.ask("PUT", f"{ROOT}/p/files?path=work/a", b"kept").status == 200
    snapshot = service.ask("POST", f"{ROOT}/p/snapshots").json["snapshot_id"]
    named = f'"path.project_id" = "p"\n"path.snapshot_id" = "{snapshot}"\n'
    attack(service, tmp_path, "--include-path-regex", ROOT, parameters=named)
    # whatever it wrote and reset, the history is whole
    kept = service.ask("GET", f"{ROOT}/p/snapshots").json["snapshots"]
    for info in kept:
        assert service.ask("POST", f"{ROOT}/p/snapshots/{info['snapshot_id']}/restore").status == 200
