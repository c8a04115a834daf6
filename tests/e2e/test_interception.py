"""TLS that is opened where the policy says so: the programs people use, unchanged, and every request of them judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_egress import FETCH, destinations, said
from tests.egress_box import Boxes
from tests.egress_lab import PUBLIC, WEB, EgressLab, running_lab

pytestmark = [pytest.mark.needs("native"), pytest.mark.needs("egress_lab")]
OPENED = "intercept_tls: true"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressLab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def boxes(tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> Boxes:
    return Boxes(tmp_path / "home", lab, monkeypatch)


@pytest.mark.parametrize(
    ("language", "program"),
    [
        ("bash", "curl -sSf {url}"),
        ("python", "import urllib.request as u; print(u.urlopen('{url}').read().decode())"),
        ("python", "import sys; sys.path.append('/mnt/packages'); import requests; print(requests.get('{url}').text)"),
        ("python", "import sys; sys.path.append('/mnt/packages'); import httpx2; print(httpx2.get('{url}').text)"),
        pytest.param("javascript", FETCH, marks=pytest.mark.needs("node")),
        pytest.param("bash", f'node -e "{FETCH}"', marks=pytest.mark.needs("node")),
    ],
    ids=["curl", "urllib", "requests", "httpx", "fetch", "node"],
)
def test_a_client_believes_the_run_s_own_authority_and_is_seen(boxes: Boxes, language: str, program: str) -> None:
    result = boxes.run(program.format(url=f"https://{WEB}/"), language, policy=boxes.policy(more=OPENED))
    assert said(result) == "hello"
    reached = destinations(result)[WEB, 443, "allowed"]
    assert (reached.method, reached.address, reached.count) == ("GET", PUBLIC, 1)
