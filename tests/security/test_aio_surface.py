"""Attacks the surface for AIO's clients: strangers' sessions, paths that lead out, keys in addresses, endless patterns.

Seen red with one place for all callers' sessions and files, and with paths that were put together and normalised.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http_service import Answer, Service, serving

pytestmark = [pytest.mark.guarantee(21), pytest.mark.needs("native"), pytest.mark.once]
SECRET = "SECRET-HOST-CONTENT-9c2f"
HEADER = "X-AIO-API-Key"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("aio"), "--aio") as running:
        yield running


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    return {tenant: service.make_key("agent", tenant) for tenant in ("acme", "other")}


def call(
    service: Service, key: str, path: str, body: Any = None, *, project: str = "p", method: str = "POST"
) -> Answer:
    headers = {HEADER: key, "X-Ringfence-Project": project}
    return service.ask(
        method, f"/v1/{path}", {} if body is None and method == "POST" else body, key=None, headers=headers
    )


def data(answer: Answer) -> Any:
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json["data"]


ASKING = (
    ("POST", "bash/output", {"session_id": "target"}),
    ("POST", "bash/write", {"session_id": "target", "input": "x"}),
    ("POST", "bash/kill", {"session_id": "target", "signal": "SIGKILL"}),
    ("POST", "bash/sessions/target/close", None),
    ("POST", "shell/view", {"id": "target"}),
    ("POST", "shell/wait", {"id": "target", "seconds": 0}),
    ("POST", "shell/write", {"id": "target", "input": "x", "press_enter": True}),
    ("POST", "shell/kill", {"id": "target"}),
    ("POST", "shell/sessions/update", {"id": "target"}),
    ("DELETE", "shell/sessions/target", None),
    ("DELETE", "jupyter/sessions/target", None),
)


@pytest.mark.guarantee(31)
@pytest.mark.parametrize("project", ["p", "aside"])
def test_a_strangers_session_answers_exactly_as_one_that_is_not_there(
    service: Service, keys: dict[str, str], project: str
) -> None:
    mine, theirs = keys["acme"], keys["other" if project == "p" else "acme"]
    before = [call(service, theirs, path, body, project=project, method=method) for method, path, body in ASKING]
    begun = data(call(service, mine, "bash/exec", {"command": "cat", "session_id": "target", "async_mode": True}))
    call(service, mine, "shell/exec", {"command": "sleep 60", "id": "target", "async_mode": True})
    call(service, mine, "jupyter/execute", {"code": "secret = 1", "session_id": "target"})
    after = [call(service, theirs, path, body, project=project, method=method) for method, path, body in ASKING]
    assert [(answer.status, answer.body) for answer in after] == [(answer.status, answer.body) for answer in before]
    assert all(answer.json["success"] is False for answer in after)
    for path in ("bash/sessions", "shell/sessions", "jupyter/sessions"):
        assert b"target" not in call(service, theirs, path, project=project, method="GET").body
    # a name is each one's own: theirs is a new session, which knows nothing of mine
    named = data(call(service, theirs, "jupyter/execute", {"code": "secret", "session_id": "target"}, project=project))
    assert named["outputs"][-1]["ename"] == "NameError"
    call(service, theirs, "bash/sessions/create", {"session_id": "own"}, project=project)
    asked = {"session_id": "own", "command_id": begun["command_id"]}
    assert data(call(service, theirs, "bash/output", asked, project=project))["error_type"] == "not_found"
    call(service, theirs, "jupyter/sessions", project=project, method="DELETE")
    assert data(call(service, theirs, "shell/sessions", project=project, method="DELETE"))["closed"] == 0
    # and mine go on
    assert data(call(service, mine, "shell/view", {"id": "target"}))["status"] == "running"
    assert data(call(service, mine, "bash/output", {"session_id": "target"}))["command"]["status"] == "running"
    assert data(call(service, mine, "jupyter/execute", {"code": "secret", "session_id": "target"}))["status"] == "ok"
    call(service, mine, "bash/sessions/target/close")
    call(service, mine, "shell/sessions", method="DELETE")
    call(service, mine, "jupyter/sessions", method="DELETE")


def test_files_of_one_project_are_nobody_elses(service: Service, keys: dict[str, str]) -> None:
    written = {"file": "mine.txt", "content": SECRET}
    assert call(service, keys["acme"], "file/write", written).json["success"]
    for key, project in ((keys["other"], "p"), (keys["acme"], "another")):
        refused = call(service, key, "file/read", {"file": "mine.txt"}, project=project)
        assert (refused.json["success"], data(refused)["error_type"]) == (False, "not_found")
        assert SECRET not in call(service, key, "bash/exec", {"command": "cat *"}, project=project).body.decode()


def test_without_a_project_of_its_own_each_key_has_one(service: Service, keys: dict[str, str]) -> None:
    second = service.make_key("agent", "acme")
    headers = [{HEADER: key} for key in (keys["acme"], second)]
    body = {"file": "by-key.txt", "content": "1"}
    assert service.ask("POST", "/v1/file/write", body, key=None, headers=headers[0]).json["success"]
    seen = [service.ask("POST", "/v1/file/read", body, key=None, headers=each).json["success"] for each in headers]
    assert seen == [True, False]


OUTSIDE = (
    "/etc/passwd",
    "/",
    "//etc/passwd",
    "/workspace/../etc/passwd",
    "/workspace/work/../../../etc/passwd",
    "../../etc/passwd",
    "work/../..",
    "/workspace2/x",
    "/home/gem/x",
    "/tmp/x",
    "/proc/self/environ",
    "~/x",
    "\u2025/x/../..",
    "a\0b",
    "a\nb",
    "\ud800",
)
PLACES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("file/read", {}, "file"),
    ("file/write", {"content": "x"}, "file"),
    ("file/list", {}, "path"),
    ("file/list", {"recursive": True}, "path"),
    ("file/replace", {"old_str": "a", "new_str": "b"}, "file"),
    ("file/search", {"regex": "a"}, "file"),
    ("file/find", {"glob": "*"}, "path"),
    ("file/grep", {"pattern": "root"}, "path"),
    ("file/glob", {"pattern": "*"}, "path"),
    ("file/str_replace_editor", {"command": "view"}, "path"),
    ("file/str_replace_editor", {"command": "create", "file_text": "x"}, "path"),
    ("bash/exec", {"command": "pwd"}, "exec_dir"),
    ("bash/sessions/create", {}, "exec_dir"),
    ("shell/exec", {"command": "pwd"}, "exec_dir"),
    ("shell/sessions/create", {}, "exec_dir"),
    ("code/execute", {"language": "python", "code": "1"}, "cwd"),
    ("jupyter/execute", {"code": "1"}, "cwd"),
)


@pytest.mark.guarantee(16)
@pytest.mark.parametrize(("path", "body", "name"), PLACES, ids=[f"{path} {name}" for path, _, name in PLACES])
def test_no_spelling_of_a_path_leads_out_of_the_project(
    service: Service, keys: dict[str, str], path: str, body: dict[str, Any], name: str
) -> None:
    for spelled in OUTSIDE:
        if spelled in ("~/x", "\u2025/x/../..") and not (path == "file/write" or ".." in spelled):
            continue  # a name like any other, which nothing here has
        told = call(service, keys["acme"], path, {**body, name: spelled}, project="paths")
        if path == "file/write" and spelled == "~/x":
            assert data(told)["file"] == "/workspace/work/~/x"
            continue
        assert told.status in (200, 422), (spelled, told.status, told.body)
        assert told.json["success"] is False, (spelled, told.body)
        assert b"root:" not in told.body


@pytest.mark.guarantee(16)
def test_a_link_that_a_guest_made_leads_nowhere(service: Service, keys: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    tmp_path.chmod(0o755)
    command = f"ln -s {tmp_path}/secret link; ln -s {tmp_path} dir; ln -s / root; ln -s /workspace/work/link chain"
    assert data(call(service, keys["acme"], "bash/exec", {"command": command}, project="links"))["exit_code"] == 0
    for name in ("link", "dir/secret", f"root{tmp_path}/secret", "chain"):
        for path, body in (
            ("file/read", {"file": name}),
            ("file/write", {"file": name, "content": "changed"}),
            ("file/write", {"file": name, "content": "changed", "append": True}),
            ("file/replace", {"file": name, "old_str": "SECRET", "new_str": "x"}),
            ("file/search", {"file": name, "regex": "SECRET"}),
            ("file/grep", {"path": name, "pattern": "SECRET"}),
            ("file/str_replace_editor", {"command": "view", "path": name}),
        ):
            told = call(service, keys["acme"], path, body, project="links")
            assert told.json["success"] is False, (path, name, told.body)
            assert SECRET not in told.body.decode()
        down = call(service, keys["acme"], f"file/download?path={name}", project="links", method="GET")
        assert down.status in (403, 404)
    everywhere = call(
        service, keys["acme"], "file/grep", {"path": "/workspace/work", "pattern": "9c2f"}, project="links"
    )
    assert SECRET not in everywhere.body.decode()
    assert (tmp_path / "secret").read_text() == SECRET


@pytest.mark.guarantee(24)
def test_what_a_guest_tells_of_its_session_reaches_no_further_than_the_session(
    service: Service, keys: dict[str, str]
) -> None:
    told_env = "printf 'PWD=/etc\\0FORGED=/x\\0BASH_ENV=/workspace/work/evil\\0' | base64 -w0"
    forged = f"e=$({told_env}); trap - EXIT; printf '\\033]7711;;%s\\007' \"$e\"; printf after"
    begun = data(call(service, keys["acme"], "shell/exec", {"command": forged}, project="forged"))
    assert begun["output"] == "after"
    command = "pwd; echo ${BASH_ENV:-none}; echo $FORGED"
    next_one = {"command": command, "id": begun["session_id"]}
    shown = data(call(service, keys["acme"], "shell/exec", next_one, project="forged"))["output"]
    assert shown.splitlines()[-3:] == ["/workspace/work", "none", "/x"]  # its own variable, in its own box
    fresh = data(call(service, keys["acme"], "shell/exec", {"command": command}, project="forged"))["output"]
    assert fresh == "/workspace/work\nnone\n\n"
    huge = "export BIG=$(head -c 60000 /dev/zero | tr '\\0' x); export SMALL=1"
    call(service, keys["acme"], "shell/exec", {"command": huge, "id": "huge"}, project="forged")
    after = {"command": "echo ${#BIG} ${SMALL:-none}", "id": "huge"}
    assert data(call(service, keys["acme"], "shell/exec", after, project="forged"))["output"] == "0 none\n"


@pytest.mark.guarantee(22)
def test_there_is_one_answer_to_every_key_that_is_none(service: Service, keys: dict[str, str]) -> None:
    good = keys["acme"]
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    tries: list[tuple[str, dict[str, str]]] = [
        ("", {}),
        ("", {HEADER: ""}),
        ("", {HEADER: wrong}),
        ("", {"Authorization": f"Bearer {wrong}"}),
        ("", {"Authorization": f"Basic {good}"}),
        (f"?api_key={wrong}", {}),
        (f"?api_key={good}", {HEADER: good}),
        (f"?api_key={good}&api_key={good}", {}),
        ("", {HEADER: good, "Authorization": f"Bearer {good}"}),
        (f"?API_KEY={good}", {}),
    ]
    answers = {
        (answer.status, answer.body)
        for query, headers in tries
        for answer in [service.ask("GET", f"/v1/sandbox{query}", key=None, headers=headers)]
    }
    assert len(answers) == 1
    ((status, body),) = answers
    told = json.loads(body)
    assert (status, told["success"], told["data"]["reason"]) == (401, False, "no_key")
    for query, headers in (("", {HEADER: good}), ("", {"Authorization": f"Bearer {good}"}), (f"?api_key={good}", {})):
        assert service.ask("GET", f"/v1/sandbox{query}", key=None, headers=headers).status == 200


@pytest.mark.guarantee(22)
def test_a_key_that_is_for_something_else_does_not_reach_here(service: Service) -> None:
    for access in ("operator", "auditor"):
        refused = service.ask("GET", "/v1/sandbox", key=None, headers={HEADER: service.make_key(access, "acme")})
        assert (refused.status, refused.json["success"], refused.json["data"]["reason"]) == (403, False, "access")


@pytest.mark.guarantee(22)
def test_a_key_in_an_address_opens_nothing_else_and_is_written_nowhere(tmp_path: Path) -> None:
    with serving(tmp_path, "--aio") as service:
        key = service.make_key("agent", "acme")
        for path in ("/sandbox/workspaces", "/sandbox/health?x", "/openapi.json", "/v1"):
            plain = service.ask("GET", path, key=None)
            assert service.ask("GET", f"{path}{'&' if '?' in path else '?'}api_key={key}", key=None).body == plain.body
            assert service.ask("GET", path, key=None, headers={HEADER: key}).body == plain.body
        body, as_json = {"command": "echo said; ls /nothing"}, {"Content-Type": "application/json"}
        answers = [
            service.ask("POST", f"/v1/bash/exec?api_key={key}", body, key=None),
            service.ask("POST", f"/v1/bash/exec?x=1&api_key={key}&y=%zz", {"command": 7}, key=None),
            service.ask("GET", f"/v1/nothing?api_key={key}", key=None),
            service.ask("GET", f"/v1/file/download?api_key={key}&path=work/nothing", key=None),
            service.ask("POST", f"/v1/bash/exec?api_key={key}", b"{", key=None, headers=as_json),
        ]
        assert [answer.status for answer in answers] == [200, 422, 404, 404, 422]
        assert all(key not in answer.body.decode() for answer in answers)
        assert all(key not in str(answer.headers) for answer in answers)
        assert service.end() == 0
        secret = key.rpartition("_")[2]
        assert secret not in "".join(service.said)
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holding == []


@pytest.mark.guarantee(22)
def test_the_surface_is_not_there_unless_it_was_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        assert service.ask("GET", "/v1/sandbox").reason == "not_found"
        assert service.ask("GET", "/v1/sandbox", key=None, headers={HEADER: str(service.key)}).reason == "no_key"
        assert service.ask("GET", f"/v1/sandbox?api_key={service.key}", key=None).reason == "no_key"


@pytest.mark.guarantee(22)
def test_a_revoked_key_is_void_for_the_next_request_of_its_session(service: Service) -> None:
    key = service.make_key("agent", "acme", "short-lived")
    begun = data(call(service, key, "bash/exec", {"command": "sleep 60", "async_mode": True}))
    listed = service.ask("GET", "/keys").json
    (key_id,) = (one["key_id"] for one in listed["keys"] if one["name"] == "short-lived")
    assert service.ask("DELETE", f"/keys/{key_id}").status < 300
    assert call(service, key, "bash/output", {"session_id": begun["session_id"]}).status == 401


@pytest.mark.guarantee(7)
def test_one_tenants_sessions_are_bounded_and_anothers_are_there(service: Service) -> None:
    greedy, modest = service.make_key("agent", "greedy"), service.make_key("agent", "modest")
    for number in range(256):
        call(service, greedy, "bash/sessions/create", {"session_id": f"s{number}"}, project=f"p{number % 7}")
    refused = call(service, greedy, "bash/sessions/create", {"session_id": "one-more"})
    assert (refused.status, refused.json["success"]) == (429, False)
    assert refused.headers["retry-after"]
    assert call(service, modest, "bash/sessions/create", {}).json["success"]
    assert call(service, greedy, "bash/sessions/s0/close", project="p0").json["success"]
    assert call(service, greedy, "bash/exec", {"command": "echo room"}).json["data"]["stdout"] == "room\n"


@pytest.mark.guarantee(7)
def test_what_runs_at_one_time_is_bounded_and_what_it_says_too(service: Service) -> None:
    key = service.make_key("agent", "loud")
    loud = data(call(service, key, "bash/exec", {"command": "yes | head -c 50000000", "max_output_length": 0}))
    assert len(loud["stdout"]) <= 1 << 20
    begun = [call(service, key, "bash/exec", {"command": "cat", "async_mode": True}) for _ in range(17)]
    assert [answer.status for answer in begun] == [200] * 16 + [429]
    for answer in begun[:16]:
        call(service, key, f"bash/sessions/{answer.json['data']['session_id']}/close")


@pytest.mark.guarantee(7)
@pytest.mark.timeout(120)
def test_a_pattern_that_never_ends_costs_its_asker_alone(service: Service, keys: dict[str, str]) -> None:
    written = {"file": "evil.txt", "content": "a" * 64 + "b"}
    assert call(service, keys["acme"], "file/write", written, project="regex").json["success"]
    answers: list[Answer] = []
    asked = {"file": "evil.txt", "regex": "^(a+)+$"}
    asking = threading.Thread(
        target=lambda: answers.append(call(service, keys["acme"], "file/search", asked, project="regex"))
    )
    asking.start()
    answered = 0
    while asking.is_alive():
        assert call(service, keys["other"], "sandbox", method="GET").status == 200
        answered += 1
    asking.join()
    assert answered > 10
    (answer,) = answers
    assert (answer.status, answer.json["data"]["reason"]) == (504, "wall_timeout")


@pytest.mark.guarantee(14)
def test_what_is_too_large_or_no_text_is_refused_in_the_envelope(service: Service, keys: dict[str, str]) -> None:
    said = service.ask(
        "POST",
        "/v1/bash/exec",
        b"{}",
        key=None,
        headers={HEADER: keys["acme"], "Content-Type": "application/json", "Content-Length": str(1 << 30)},
    )
    assert (said.status, said.json["success"]) == (413, False)
    for command in ("a\0b", "\ud800", ""):
        told = call(service, keys["acme"], "bash/exec", {"command": command})
        assert told.status in (200, 422)
    for name in ("../x", "a/b", "a b", "\u00e9", "x" * 129, ""):
        told = call(service, keys["acme"], "bash/exec", {"command": "true", "session_id": name})
        assert told.json["success"] is False, name
    assert (
        call(service, keys["acme"], "file/write", {"file": "x", "content": "y", "sudo": True}).json["success"] is False
    )


FILE, PATH = (b'Content-Disposition: form-data; name="%s"\r\n' % name for name in (b"file", b"path"))


@pytest.mark.guarantee(14)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b--\r\n",
        b"--b\r\n" + FILE + b"\r\nx",
        b"--b\r\n" + FILE + PATH + b"\r\nx\r\n--b--",
        b"--b\r\n" + FILE + b"\r\nx\r\n--b\r\n" + FILE + b"\r\ny\r\n--b--",
        b"--b\r\n" + PATH + b"\r\nx\r\n--b--\r\n",
        b"preamble\r\n--b\r\n" + FILE + b"\r\nx\r\n--b--\r\n",
        b"--b\r\n" + FILE + b"\r\nx\r\n--b--\r\n--b\r\n" + PATH + b"\r\nx\r\n--b--\r\n",
    ],
)
def test_a_form_that_two_readers_could_take_for_two_is_refused(
    service: Service, keys: dict[str, str], body: bytes
) -> None:
    headers = {HEADER: keys["acme"], "Content-Type": "multipart/form-data; boundary=b"}
    told = service.ask("POST", "/v1/file/upload", body, key=None, headers=headers)
    assert (told.status, told.json["success"]) == (422, False)
