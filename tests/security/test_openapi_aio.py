"""Attacks the surface for AIO's clients with whatever its own document allows and forbids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import SOAK
from tests.http_service import Service, serving
from tests.security.test_openapi import attack

pytestmark = [pytest.mark.guarantee(14), pytest.mark.once]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("openapi-aio"), "--aio") as running:
        yield running


@pytest.mark.needs("native")
@pytest.mark.timeout(3600 if SOAK else 600)
def test_nothing_that_the_document_allows_or_forbids_breaks_the_surface(service: Service, tmp_path: Path) -> None:
    attack(service, tmp_path, "--include-path-regex", "^/v1/")


def test_every_operation_says_who_may_call_and_how_it_refuses(service: Service) -> None:
    document = service.ask_socket("GET", "/openapi.json").json
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        if path.startswith("/v1/")
        for method, operation in methods.items()
    ]
    assert len(operations) > 40
    for method, path, operation in operations:
        assert operation["security"] == [{"ApiKey": []}], (method, path)
        for status, answer in operation["responses"].items():
            if status.startswith(("4", "5")):
                assert list(answer.get("content", ())) == ["application/json"], (method, path, status)
