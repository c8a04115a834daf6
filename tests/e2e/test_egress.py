"""What people do with a network, through the way out of a box: with the programs they use, unchanged."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.egress_box import Boxes
from tests.egress_lab import PUBLIC, SECOND, WEB, EgressLab, running_lab

from ringfence.errors import CapabilityBlocked, Denied, QuotaExceeded
from ringfence.outcome import Destination, ExecutionResult

pytestmark = [pytest.mark.needs("native"), pytest.mark.needs("egress_lab")]
IMAGES = {"docker": "docker_engine", "gvisor": "gvisor_image"}
DOCKER = pytest.param("docker", marks=pytest.mark.needs("docker"))
GVISOR = pytest.param("gvisor", marks=pytest.mark.needs("gvisor"))


def also_in(*kinds: Any) -> pytest.MarkDecorator:
    """Run a test in native boxes, and in those of other kinds, each of which starts slowly."""
    return pytest.mark.parametrize("boxes", ["native", *kinds], indirect=True)


FETCH = "fetch('{url}').then(r => r.text()).then(console.log)"
# a Node that was parked has read its authorities already
UNVERIFIED = "process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';"
OPENED = "intercept_tls: true"
either_way = pytest.mark.parametrize("more", ["", OPENED], ids=["tunnel", "opened"])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EgressLab]:
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def boxes(request: pytest.FixtureRequest, tmp_path: Path, lab: EgressLab, monkeypatch: pytest.MonkeyPatch) -> Boxes:
    kind = getattr(request, "param", "native")
    if kind in IMAGES:
        request.getfixturevalue(IMAGES[kind])
    return Boxes(tmp_path / "home", lab, monkeypatch, isolation=kind)


def said(result: ExecutionResult) -> str:
    assert result.success, (result.error, result.stderr, result.network)
    return result.stdout.strip()


def destinations(result: ExecutionResult) -> dict[tuple[str, int, str], Destination]:
    assert result.network is not None
    return {(each.host, each.port, each.decision): each for each in result.network.destinations}


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("language", "program"),
    [
        ("bash", "curl -sSf {url}"),
        ("python", "import urllib.request as u; print(u.urlopen('{url}').read().decode())"),
        ("python", "import sys; sys.path.append('/mnt/packages'); import requests; print(requests.get('{url}').text)"),
        ("python", "import sys; sys.path.append('/mnt/packages'); import httpx2; print(httpx2.get('{url}').text)"),
        pytest.param("javascript", f"{UNVERIFIED} {FETCH}", marks=pytest.mark.needs("node")),
        pytest.param("bash", f'node -e "{FETCH}"', marks=pytest.mark.needs("node")),
    ],
    ids=["curl", "urllib", "requests", "httpx", "fetch", "node"],
)
def test_a_client_reaches_a_granted_host(boxes: Boxes, scheme: str, language: str, program: str) -> None:
    result = boxes.run(program.format(url=f"{scheme}://{WEB}/"), language)
    assert said(result) == "hello"
    port = 443 if scheme == "https" else 80
    reached = destinations(result)[WEB, port, "allowed"]
    assert reached.address == PUBLIC
    assert reached.bytes_in > 5
    assert reached.bytes_out > 20


@also_in(GVISOR)
@either_way
def test_pip_installs_from_a_granted_index(boxes: Boxes, lab: EgressLab, more: str) -> None:
    index = lab.directory / "simple" / "ringdemo"
    index.mkdir(parents=True, exist_ok=True)
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ringdemo.py", "print('from a wheel')\n")
        archive.writestr("ringdemo-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: ringdemo\nVersion: 1.0\n")
        archive.writestr(
            "ringdemo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("ringdemo-1.0.dist-info/RECORD", "")
    (index / "ringdemo-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    (index / "index.html").write_text('<a href="ringdemo-1.0-py3-none-any.whl">ringdemo-1.0-py3-none-any.whl</a>')
    install = "python -m pip install -q --target lib --disable-pip-version-check --no-cache-dir"
    script = f"{install} --index-url https://{WEB}/simple/ ringdemo && PYTHONPATH=lib python -c 'import ringdemo'"
    assert said(boxes.run(script, "bash", policy=boxes.policy(more=more))) == "from a wheel"


@either_way
@pytest.mark.needs("node")
@also_in(DOCKER)
def test_npm_installs_from_a_granted_registry(boxes: Boxes, lab: EgressLab, more: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (
            ("package/package.json", '{"name": "ringdemo", "version": "1.0.0", "main": "index.js"}'),
            ("package/index.js", "console.log('from a tarball')"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    content = packed.getvalue()
    (lab.directory / "npm").mkdir(exist_ok=True)
    (lab.directory / "npm" / "ringdemo.tgz").write_bytes(content)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    version = {
        "name": "ringdemo",
        "version": "1.0.0",
        "dist": {"tarball": f"https://{WEB}/npm/ringdemo.tgz", "integrity": integrity},
    }
    described = {"name": "ringdemo", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (lab.directory / "ringdemo").write_text(json.dumps(described))
    script = (
        f"npm install --silent --no-audit --no-fund --no-update-notifier --registry https://{WEB}/ ringdemo "
        "&& node -e \"require('ringdemo')\""
    )
    assert said(boxes.run(script, "bash", policy=boxes.policy(more=more))) == "from a tarball"


@also_in(DOCKER, GVISOR)
@either_way
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_git_clones_from_a_granted_host(boxes: Boxes, lab: EgressLab, tmp_path: Path, scheme: str, more: str) -> None:
    work, bare = tmp_path / "work", lab.directory / f"{scheme}{len(more)}-{boxes.isolation}.git"
    identity = ("-c", "user.name=lab", "-c", "user.email=lab@example.com")
    work.mkdir()
    (work / "file").write_text("from a repository\n")
    for words in (
        ("init", "-q", str(work)),
        ("-C", str(work), "add", "."),
        ("-C", str(work), *identity, "commit", "-qm", "one"),
        ("clone", "-q", "--bare", str(work), str(bare)),
        ("-C", str(bare), "update-server-info"),
    ):
        subprocess.run(["git", *words], check=True, capture_output=True)
    script = f"git clone -q {scheme}://{WEB}/{bare.name} got && cat got/file"
    assert said(boxes.run(script, "bash", policy=boxes.policy(more=more))) == "from a repository"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_was_not_asked_for_is_not_reached_though_the_policy_grants_it(boxes: Boxes, scheme: str) -> None:
    result = boxes.run(f"curl -sS -o /dev/null -w '%{{http_code}} %{{http_connect}}' {scheme}://{SECOND}/", "bash")
    assert "403" in result.stdout
    port = 443 if scheme == "https" else 80
    refused = destinations(result)[SECOND, port, "denied"]
    assert (refused.reason, refused.address, refused.bytes_in, refused.bytes_out) == ("host", "", 0, 0)


@either_way
def test_bodies_arrive_whole_in_every_framing(boxes: Boxes, lab: EgressLab, more: str) -> None:
    script = f"""
set -e
head -c 3000000 /dev/zero > big
curl -sSf -d @big http://{WEB}/echo; echo
curl -sSf -T big http://{WEB}/echo; echo
curl -sSf -H 'Transfer-Encoding: chunked' -H 'Expect:' --data-binary @big http://{WEB}/echo; echo
curl -sSf --data-binary @big https://{WEB}/echo; echo
curl -sSf -I http://{WEB}/size/1000000 | head -1 | tr -d '\\r'
curl -sSf --proxytunnel http://{WEB}/
"""
    lines = said(boxes.run(script, "bash", policy=boxes.policy(more=more))).split("\n")
    assert lines[1:] == ["3000000 bytes", "3000000 bytes", "3000000 bytes", "HTTP/1.1 200 OK", "hello"]


def test_a_redirect_is_a_request_of_its_own(boxes: Boxes) -> None:
    script = f"curl -sS -L -o /dev/null -w '%{{http_code}}' 'http://{WEB}/to?http://{SECOND}/'"
    result = boxes.run(script, "bash")
    assert result.stdout == "403"
    assert (SECOND, 80, "denied") in destinations(result)


@also_in(DOCKER)
def test_the_loopback_of_the_box_is_reached_without_the_proxy(boxes: Boxes) -> None:
    program = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.handle_request, daemon=True).start()
print(urllib.request.urlopen(f'http://localhost:{server.server_port}/').status)
"""
    result = boxes.run(program)
    assert said(result) == "200"
    assert result.network is not None
    assert result.network.destinations == ()


def test_a_run_that_asks_for_nothing_has_no_way_out_under_the_same_policy(boxes: Boxes) -> None:
    program = "import os, socket; print('https_proxy' in os.environ, socket.socket().connect_ex(('127.0.0.1', 3128)))"
    result = boxes.run(program, allow=())
    assert said(result) == "False 111"
    assert result.network is None


# --- the law ---


def test_a_host_that_the_policy_does_not_grant_is_refused_before_anything_runs(boxes: Boxes) -> None:
    with pytest.raises(CapabilityBlocked, match=r"no way to evil\.example\.com") as refused:
        boxes.run("1", allow=("evil.example.com",))
    assert refused.value.reason == "domain"


def test_without_a_policy_nothing_is_granted(boxes: Boxes) -> None:
    nothing = boxes.home / "nothing.yaml"
    nothing.write_text("policies:\n  default: {}\n")
    with pytest.raises(CapabilityBlocked):
        boxes.run("1", policy=nothing)


def test_safe_retrieval_is_too_little_for_code(boxes: Boxes) -> None:
    with pytest.raises(CapabilityBlocked, match="net_mode"):
        boxes.run("1", policy=boxes.policy(more="net_mode: safe_retrieval"))


def test_an_unrestricted_policy_needs_a_persons_consent(boxes: Boxes) -> None:
    with pytest.raises(Denied) as refused:
        boxes.run("1", policy=boxes.policy(more="net_mode: unrestricted"))
    assert refused.value.reason == "consent_required"


def test_a_deny_list_wins(boxes: Boxes) -> None:
    policy = boxes.policy(domains=["*.example.com"])
    with pytest.raises(CapabilityBlocked) as refused:
        boxes.run("1", allow=("denied.example.com",), policy=policy)
    assert refused.value.reason == "blacklist"
    script = "curl -sS -o /dev/null -w '%{http_code}' http://denied.example.com/"
    result = boxes.run(script, "bash", allow=("*.example.com",), policy=policy)
    assert result.stdout == "403"
    assert destinations(result)["denied.example.com", 80, "denied"].reason == "denied_domain"


def test_methods_that_are_named_hold_for_what_can_be_seen_and_shut_what_cannot(boxes: Boxes, lab: EgressLab) -> None:
    policy = boxes.policy(more="allowed_methods: [GET]")
    script = f"""
curl -sS -o /dev/null -w '%{{http_code}} ' http://{WEB}/
curl -sS -o /dev/null -w '%{{http_code}} ' -d x http://{WEB}/echo
curl -sS -o /dev/null -w '%{{http_connect}}' https://{WEB}/ || true
"""
    result = boxes.run(script, "bash", policy=policy)
    assert result.stdout == "200 403 403"
    assert result.network is not None
    reasons = {(each.method, each.reason) for each in result.network.destinations}
    assert reasons == {("GET", ""), ("POST", "method"), ("CONNECT", "method")}


def test_bytes_are_counted_and_cut_when_they_are_spent(boxes: Boxes) -> None:
    policy = boxes.policy(more="max_bytes_in: 100KB")
    script = f"curl -sS https://{WEB}/size/5000000 | wc -c; curl -sS -o /dev/null -w '%{{http_code}}' http://{WEB}/"
    result = boxes.run(script, "bash", policy=policy)
    got = int(result.stdout.split()[0])
    assert got < 102_400
    assert result.stdout.split()[1] == "403"
    assert result.network is not None
    assert result.network.bytes_in == 102_400
    assert {each.reason for each in result.network.destinations} == {"budget"}
    assert result.used.bytes_in == 102_400


@also_in(DOCKER, GVISOR)
def test_a_budget_is_drawn_on_by_what_comes_and_goes(boxes: Boxes) -> None:
    policy = boxes.policy()
    policy.write_text(f"{policy.read_text()}budgets: {{tenant: {{local: {{bytes_in: 50000}}}}}}\n")
    program = f"""
import http.client, urllib.request
try:
    print(len(urllib.request.urlopen('http://{WEB}/size/1000000').read()))
except http.client.IncompleteRead as error:
    print(len(error.partial))
"""
    first, second = boxes.run(program, policy=policy), None
    assert 0 < int(first.stdout) < 50_000
    assert first.network is not None
    assert first.network.bytes_in == 50_000
    with pytest.raises(QuotaExceeded):
        second = boxes.run(program, policy=policy)
    assert second is None


def test_a_rule_that_asks_about_a_host_needs_consent_and_stops_what_is_below_a_granted_suffix(boxes: Boxes) -> None:
    policy = boxes.policy(domains=["*.example.com"])
    policy.write_text(f"{policy.read_text()}rules:\n  - {{domain: {SECOND}, decision: ask, match: [{SECOND}]}}\n")
    with pytest.raises(Denied) as refused:
        boxes.run("1", allow=(SECOND,), policy=policy)
    assert refused.value.reason == "consent_required"
    script = f"curl -sS -o /dev/null -w '%{{http_code}} ' http://{SECOND}/ http://{WEB}/ -o /dev/null"
    result = boxes.run(script, "bash", allow=("*.example.com",), policy=policy)
    assert result.stdout.split() == ["403", "200"]
    assert destinations(result)[SECOND, 80, "denied"].reason == "consent_required"
