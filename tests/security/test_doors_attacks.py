"""Attacks on the doors by somebody who has a key: to leave his box, his tenant, his project, or his share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.http_service import Service, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("attacks")) as running:
        yield running


@pytest.fixture(scope="module")
def agent(service: Service) -> str:
    return service.make_key("agent", "acme", "mallory")


def run_of(code: str, kind: str = "shell", **members: object) -> dict[str, object]:
    return {"ephemeral": True, "exec": {"kind": kind, "code": code}, **members}


@pytest.mark.guarantee(2)
@pytest.mark.parametrize("path", ["/sandbox/execs", "/sandbox/processes"])
def test_an_agent_cannot_have_a_package_imported_in_front_of_the_boxes(service: Service, agent: str, path: str) -> None:
    asked = {"ephemeral": True, "exec": {"kind": "python", "code": "pass", "preload": ["this"]}}
    answer = service.ask("POST", path, asked, key=agent)
    assert (answer.status, answer.reason) == (403, "access")
