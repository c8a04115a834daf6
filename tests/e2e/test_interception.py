"""TLS that is opened where the policy says so: the programs people use, unchanged, and every request of them judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_egress import FETCH, OPENED, destinations, said
from tests.egress_box import Boxes
from tests.egress_lab import PUBLIC, SECOND, WEB, EgressLab, running_lab

from ringfence.clock import SystemClock
from ringfence.database.address import open_database
from ringfence.errors import CapabilityBlocked
from ringfence.journal.reader import reading
from ringfence.operation.secret import Way
from ringfence.outcome import ExecutionResult
from ringfence.secrets.registry import Registry

pytestmark = [pytest.mark.needs("native"), pytest.mark.needs("egress_lab")]


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


def test_methods_and_paths_hold_inside_tls(boxes: Boxes, lab: EgressLab) -> None:
    limits = "intercept_tls: true\n      allowed_methods: [GET]\n      allowed_url_paths: [/size/**, /echo]"
    policy = boxes.policy(more=limits)
    script = "".join(
        f"curl -sS -o /dev/null -w '%{{http_code}} ' --path-as-is {words} || true\n"
        for words in (
            f"https://{WEB}/size/10 https://{WEB}/echo?a=b -o /dev/null",
            f"https://{WEB}/ https://{WEB}/size/../index.html -o /dev/null https://{WEB}/%73ize/10 -o /dev/null",
            f"-d x https://{WEB}/echo",
            f"http://{WEB}/size/10 http://{WEB}/index.html -o /dev/null",
        )
    )
    result = boxes.run(script, "bash", policy=policy)
    assert result.stdout.split() == ["200", "200", "403", "403", "403", "403", "200", "403"]
    assert result.network is not None
    denied = sorted((each.method, each.reason, each.count) for each in result.network.destinations if each.reason)
    assert denied == [("GET", "path", 1), ("GET", "path", 3), ("POST", "method", 1)]
    unseen = boxes.run(
        f"curl -sS -o /dev/null -w '%{{http_connect}}' https://{WEB}/echo || true",
        "bash",
        policy=boxes.policy(more="allowed_url_paths: [/echo]"),
    )
    assert unseen.stdout == "403"


# --- a secret that never enters ---

VALUE = "tok-Zq7f-not+to/be=seen-0192"
IMAGES = {"docker": "docker_engine", "gvisor": "gvisor_image"}
SECRETS = "secrets: {TOKEN: {tools: [code_run, shell_exec]}}\n"


@pytest.fixture
def with_secret(boxes: Boxes) -> Boxes:
    registry = Registry(boxes.home, SystemClock())
    registry.put("local", "TOKEN", VALUE.encode(), hosts=(WEB,), ways=frozenset({Way.BROKER}))
    return boxes


def brokered(boxes: Boxes, code: str, language: str = "bash", more: str = OPENED, **options: Any) -> ExecutionResult:
    policy = boxes.policy(more=more)
    policy.write_text(policy.read_text() + SECRETS)
    return boxes.run(code, language, policy=policy, **{"secrets": ["TOKEN=broker:API_KEY"], **options})


def test_a_program_uses_a_secret_that_its_box_does_not_hold(with_secret: Boxes, lab: EgressLab) -> None:
    lab.seen.clear()
    script = f"""
cat /workspace/inputs/tls/authorities.pem | grep -c PRIVATE
for n in 1 2; do curl -sS -H "Authorization: Bearer $API_KEY" https://{WEB}/echo > /workspace/artifacts/said$n; done
curl -sS -u "user:$API_KEY" https://{WEB}/echo -o /dev/null
curl -sS -H "X: $API_KEY" https://{SECOND}/echo
cat /workspace/artifacts/said1 >&2
env; cat /proc/*/environ
"""
    result = brokered(with_secret, script, allow=(WEB, SECOND))
    assert [head["Authorization"] for _, _, head in lab.seen][:2] == [f"Bearer {VALUE}"] * 2
    assert len(lab.seen) == 3
    assert "the secret TOKEN is not bound to" in result.stdout
    assert "API_KEY=rfsecret_" in result.stdout
    assert "Authorization: Bearer rfsecret_" in result.stderr
    assert result.network is not None
    used = sorted((each.host, each.secret, each.decision, each.count) for each in result.network.destinations)
    assert used == [(SECOND, "TOKEN", "denied", 1), (WEB, "TOKEN", "allowed", 3)]

    kept = b"".join(path.read_bytes() for path in with_secret.home.rglob("*") if path.is_file())
    artifacts = b"".join(artifact.read() for artifact in result.artifacts)
    told = repr(result).encode() + result.stdout_raw + result.stderr_raw + artifacts
    assert VALUE.encode() not in kept + told
    database = open_database(with_secret.home)
    try:
        with reading(database) as reader:
            execution = reader.execution(result.exec_id)
    finally:
        database.close()
    assert execution is not None
    assert execution.end is not None
    end = json.loads(execution.end.text or "")
    assert {place["secret"] for place in end["network"]["destinations"]} == {"TOKEN"}
    assert b"secret.leased" in kept


@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
        pytest.param("docker", marks=pytest.mark.needs("docker")),
        pytest.param("gvisor", marks=pytest.mark.needs("gvisor")),
    ],
)
def test_other_boxes_use_a_secret_in_the_same_way(
    tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, isolation: str
) -> None:
    if isolation in IMAGES:
        request.getfixturevalue(IMAGES[isolation])
    lab.seen.clear()
    boxes = Boxes(tmp_path / "home", lab, monkeypatch, isolation=isolation)
    Registry(boxes.home, SystemClock()).put("local", "TOKEN", VALUE.encode(), hosts=(WEB,))
    program = f"""
import os, urllib.request
request = urllib.request.Request('https://{WEB}/echo', headers={{'X-Key': os.environ['API_KEY']}})
print(urllib.request.urlopen(request).read().decode())
"""
    result = brokered(boxes, program, "python")
    assert "X-Key: rfsecret_" in said(result)
    assert VALUE in repr(lab.seen)
    assert VALUE not in repr(result)


@pytest.mark.parametrize(
    ("more", "options", "fix"),
    [("", {}, "intercept_tls"), (OPENED, {"allow": ()}, "allow_domains")],
    ids=["closed", "nowhere"],
)
def test_a_secret_that_nobody_could_put_in_is_refused_and_never_given_instead(
    with_secret: Boxes, more: str, options: dict[str, Any], fix: str
) -> None:
    with pytest.raises(CapabilityBlocked) as refused:
        brokered(with_secret, "env", more=more, **options)
    assert (refused.value.reason, fix in str(refused.value.fix)) == ("secret_way", True)
