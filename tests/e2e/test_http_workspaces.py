"""`/sandbox/workspaces` as its callers have it: files and their history over the wire, each tenant its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.http_service import Answer, Service, serving

from ringfence.workspaces.session import MOST_PROJECTS

pytestmark = pytest.mark.needs("native")
ROOT = "/sandbox/workspaces"
UNKNOWN = "snap_" + "0" * 32


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    return {tenant: service.make_key("agent", tenant) for tenant in ("acme", "other")}


def put(service: Service, key: str, project: str, path: str, content: bytes, options: str = "") -> Answer:
    return service.ask("PUT", f"{ROOT}/{project}/files?path={quote(path)}{options}", content, key=key)


def get(service: Service, key: str, project: str, path: str) -> Answer:
    return service.ask("GET", f"{ROOT}/{project}/files?path={quote(path)}", key=key)


def test_files_go_in_come_out_are_listed_and_deleted(service: Service, keys: dict[str, str]) -> None:
    key, content = keys["acme"], bytes(range(256)) * 100
    written = put(service, key, "p1", "work/d/a b.bin", content)
    assert (written.status, written.json["created"], written.json["bytes"]) == (200, True, len(content))
    assert written.json["evidence_id"]
    read = get(service, key, "p1", "work/d/a b.bin")
    assert (read.status, read.body, read.headers["content-type"]) == (200, content, "application/octet-stream")
    assert (read.headers["x-file-size"], read.headers["x-file-truncated"]) == (str(len(content)), "false")
    part = service.ask("GET", f"{ROOT}/p1/files?path=work/d/a%20b.bin&offset=10&length=5", key=key)
    assert (part.body, part.headers["x-file-truncated"]) == (content[10:15], "true")
    assert [entry["name"] for entry in get(service, key, "p1", "work/d").json["entries"]] == ["a b.bin"]
    assert put(service, key, "p1", "work/d/a b.bin", b"", "&overwrite=false").status == 409
    assert put(service, key, "p1", "work/e", b"", "&directory=true").json["created"] is True
    assert service.ask("DELETE", f"{ROOT}/p1/files?path=work/d", key=key).reason == "not_empty"
    assert service.ask("DELETE", f"{ROOT}/p1/files?path=work/d/a%20b.bin", key=key).status == 200
    assert get(service, key, "p1", "work/d/a b.bin").reason == "not_found"


def test_a_json_file_is_a_file_like_any_other(service: Service, keys: dict[str, str]) -> None:
    sent = service.ask("PUT", f"{ROOT}/p2/files?path=work/a.json", {"content": "x"}, key=keys["acme"])
    assert sent.status == 200
    assert get(service, keys["acme"], "p2", "work/a.json").body == b'{"content": "x"}'


def test_history_over_the_wire(service: Service, keys: dict[str, str]) -> None:
    key, at = keys["acme"], f"{ROOT}/history"
    put(service, key, "history", "work/a.txt", b"one\n")
    taken = service.ask("POST", f"{at}/snapshots", {"label": "first"}, key=key)
    assert (taken.status, taken.json["label"], taken.json["files"], taken.json["bytes"]) == (201, "first", 1, 4)
    snapshot = taken.json["snapshot_id"]
    put(service, key, "history", "work/a.txt", b"two\n")
    diff = service.ask("GET", f"{at}/diff?since={snapshot}", key=key).json
    assert (diff["modified"], diff["patch"]) == (1, "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n")
    assert service.ask("GET", f"{at}/diff", key=key).json["added"] == 1
    restored = service.ask("POST", f"{at}/snapshots/{snapshot}/restore", {"snapshot_before": True}, key=key)
    assert restored.status == 200
    assert get(service, key, "history", "work/a.txt").body == b"one\n"
    assert service.ask("POST", f"{at}/reset", key=key).status == 200
    assert get(service, key, "history", "work").json["entries"] == []
    assert service.ask("POST", f"{at}/snapshots/{restored.json['snapshot_before']}/restore", key=key).status == 200
    assert get(service, key, "history", "work/a.txt").body == b"two\n"
    listed = service.ask("GET", f"{at}/snapshots", key=key).json["snapshots"]
    assert [info["label"] for info in listed] == ["first", "before restore"]
    assert service.ask("DELETE", f"{at}/snapshots/{snapshot}", key=key).status == 200
    assert len(service.ask("GET", f"{at}/snapshots", key=key).json["snapshots"]) == 1


def test_what_a_run_wrote_is_found_and_what_was_put_is_seen_by_a_run(service: Service, keys: dict[str, str]) -> None:
    key = keys["acme"]
    put(service, key, "shared", "work/in.txt", b"from outside\n")
    body = {
        "project_id": "shared",
        "exec": {"kind": "shell", "command": "bash", "args": ["-c", "cat in.txt > out.txt"]},
    }
    assert service.ask("POST", "/sandbox/execs", body, key=key).status == 201
    assert get(service, key, "shared", "work/out.txt").body == b"from outside\n"


def test_another_tenants_project_and_nobodys_answer_the_same(service: Service, keys: dict[str, str]) -> None:
    mine, theirs = keys["acme"], keys["other"]
    put(service, mine, "private", "work/secret", b"x")
    snapshot = service.ask("POST", f"{ROOT}/private/snapshots", key=mine).json["snapshot_id"]
    asked = [
        ("GET", "files"),
        ("GET", "files?path=work/secret"),
        ("DELETE", "files?path=work/secret"),
        ("GET", "diff"),
        ("GET", "snapshots"),
        ("POST", "snapshots"),
        ("POST", "reset"),
        ("DELETE", f"snapshots/{snapshot}"),
        ("POST", f"snapshots/{snapshot}/restore"),
    ]
    for method, what in asked:
        foreign = service.ask(method, f"{ROOT}/private/{what}", key=theirs)
        unknown = service.ask(method, f"{ROOT}/nobodys/{what}", key=theirs)
        assert (foreign.status, foreign.body) == (unknown.status, unknown.body) == (404, unknown.body), what
    assert "private" not in str(service.ask("GET", ROOT, key=theirs).json)
    assert {"project_id": "private"} in service.ask("GET", ROOT, key=mine).json["projects"]
    assert not (service.home / "workspace/tenants/other/projects/nobodys").exists()  # nothing was made by asking
    put(service, theirs, "private", "work/own", b"y")  # a name of their own
    for method, what in (("POST", "snapshots/{}/restore"), ("DELETE", "snapshots/{}"), ("GET", "diff?since={}")):
        asked_for = (f"{ROOT}/private/{what.format(name)}" for name in (snapshot, UNKNOWN))
        foreign, unknown = (service.ask(method, path, key=theirs) for path in asked_for)
        assert (foreign.status, foreign.json["detail"]) == (404, "there is no such snapshot")
        assert foreign.body == unknown.body
    assert get(service, mine, "private", "work/secret").body == b"x"


def test_projects_are_listed_by_pages(service: Service) -> None:
    key = service.make_key("agent", "paged")
    for name in ("a", "b", "c"):
        put(service, key, name, "work/x", b"")
    first = service.ask("GET", f"{ROOT}?limit=2", key=key).json
    assert [found["project_id"] for found in first["projects"]] == ["a", "b"]
    rest = service.ask("GET", f"{ROOT}?limit=2&cursor={first['cursor']}", key=key).json
    assert ([found["project_id"] for found in rest["projects"]], rest["cursor"]) == (["c"], None)


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "work/../../x", "work/a%00b", "", "artifacts/x", "inputs/x", "a" * 5000]
)
def test_a_path_that_leads_elsewhere_changes_nothing(service: Service, keys: dict[str, str], path: str) -> None:
    for method, body in (("PUT", b"x"), ("GET", None), ("DELETE", None)):
        spelled = path if "%" in path else quote(path)
        answer = service.ask(method, f"{ROOT}/p1/files?path={spelled}", body, key=keys["acme"])
        assert 400 <= answer.status < 500
        assert answer.reason


@pytest.mark.parametrize("project", ["..", "%2e%2e", "a%2fb", "-x%20y", "a%00", "x" * 200, "%ff"])
def test_a_project_that_cannot_be_one_is_refused(service: Service, keys: dict[str, str], project: str) -> None:
    for method, what in (("PUT", "files?path=work/a"), ("GET", "files"), ("POST", "snapshots")):
        answer = service.ask(method, f"{ROOT}/{project}/{what}", b"" if method == "PUT" else None, key=keys["acme"])
        assert answer.status in (404, 405, 422), (method, answer)
        assert answer.reason


def test_a_body_that_is_too_large_is_413(service: Service, keys: dict[str, str]) -> None:
    key = keys["acme"]
    assert put(service, key, "p1", "work/large", b"x" * (17 * 1024 * 1024)).status == 413
    said = service.ask(
        "PUT", f"{ROOT}/p1/files?path=work/large", b"", key=key, headers={"Content-Length": str(1 << 40)}
    )
    assert said.status == 413
    assert get(service, key, "p1", "work/large").reason == "not_found"


def test_more_than_the_project_may_hold_is_429(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  default: {max_disk: 64KB}\n")
    with serving(tmp_path / "home", "--policy", str(policy)) as service:
        assert service.key is not None
        answer = put(service, service.key, "p", "work/a", b"x" * 100_000)
        assert (answer.status, answer.reason) == (429, "disk")


def test_bodies_that_are_none_change_nothing(service: Service, keys: dict[str, str]) -> None:
    key, at = keys["acme"], f"{ROOT}/p1"
    for path, body in (
        ("snapshots", {"label": 1}),
        ("snapshots", {"label": "x" * 201}),
        ("snapshots", {"label": "\x1b[31m"}),
        ("snapshots", {"name": "x"}),
        ("snapshots", []),
        ("reset", {"snapshot_before": "yes"}),
        (f"snapshots/{UNKNOWN}/restore", {"snapshot_before": 1}),
        ("snapshots", b"{"),
    ):
        headers = {"Content-Type": "application/json"} if isinstance(body, bytes) else None
        answer = service.ask("POST", f"{at}/{path}", body, key=key, headers=headers)
        assert answer.status in (400, 422), (path, body, answer)
    assert service.ask("GET", f"{at}/snapshots", key=key).json["snapshots"] == []


def test_auditors_and_operators_do_not_reach_files(service: Service) -> None:
    for access in ("auditor", "operator"):
        key = service.make_key(access)
        assert service.ask("GET", f"{ROOT}/p1/files", key=key).status == 403


def test_a_tenant_has_so_many_projects_and_others_notice_nothing(service: Service, keys: dict[str, str]) -> None:
    crowded = service.make_key("agent", "crowded")
    assert put(service, crowded, "first", "work/a", b"1").status == 200
    for number in range(MOST_PROJECTS - 1):
        (service.home / f"workspace/tenants/crowded/projects/p{number}").mkdir()
    assert put(service, crowded, "one-more", "work/a", b"1").reason == "projects"
    body = {"project_id": "one-more", "exec": {"kind": "shell", "code": "true"}}
    assert service.ask("POST", "/sandbox/execs", body, key=crowded).reason == "projects"
    assert put(service, crowded, "first", "work/b", b"1").status == 200
    assert put(service, keys["other"], "one-more", "work/a", b"1").status == 200
