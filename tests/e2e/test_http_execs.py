"""Executions over HTTP as an agent has them: a real service, real boxes, real evidence."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import PATIENCE_SECONDS, told
from tests.http_service import Answer, Service, serving

from ringfence.database.sqlite import SqliteDatabase
from ringfence.evidence.projections.exec_row import COLUMNS
from ringfence.outcome_form import read_result

SOAK = 20 if os.environ.get("RINGFENCE_SOAK") else 1


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("execs")) as running:
        yield running


def post(service: Service, code: str, *, key: str | None = None, **body: Any) -> Answer:
    asked = {"project_id": "p", "exec": {"kind": "python", "code": code}, **body}
    return service.ask("POST", "/sandbox/execs", asked, headers={"Idempotency-Key": key} if key else None)


def ran(answer: Answer) -> dict[str, Any]:
    assert answer.status == 201, answer.body
    told: dict[str, Any] = answer.json
    return told


# --- what 003 says ---


def test_a_run_answers_with_everything_a_result_has(service: Service) -> None:
    answer = post(service, "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)")
    told = ran(answer)
    assert (told["status"], told["exit_code"], told["stdout"], told["stderr"]) == ("failed", 3, "1\n", "2\n")
    assert answer.headers["location"] == f"/sandbox/execs/{told['exec_id']}"
    assert told["artifacts_dir"] == f"projects/p/artifacts/{told['exec_id']}"
    assert told["stdout_path"] == f"{told['artifacts_dir']}/stdout.txt"
    assert (service.home / "workspace" / told["stdout_path"]).read_text() == "1\n"
    assert (service.home / "workspace" / told["stderr_path"]).read_text() == "2\n"
    assert read_result(told).exit_code == 3


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"kind": "shell", "command": "bash", "args": ["-lc", "echo $((6*7))"]}, "42\n"),
        ({"kind": "shell", "args": ["-lc", "echo a"]}, "a\n"),
        ({"kind": "bash", "code": "echo b"}, "b\n"),
        ({"kind": "shell", "code": "pwd", "cwd": "/workspace/artifacts"}, "/workspace/artifacts\n"),
        (
            {"kind": "python", "code": "import os; print(os.getcwd())", "cwd": "/workspace/inputs"},
            "/workspace/inputs\n",
        ),
        ({"kind": "python", "command": "python", "args": ["-c", "print('c')"]}, "c\n"),
        ({"kind": "python", "command": "python3", "args": ["-c", "print('c')"], "cwd": "/workspace/work"}, "c\n"),
        ({"kind": "python", "code": "import sys; print(sys.argv[1:])", "args": ["-x", "y"]}, "['-x', 'y']\n"),
        ({"kind": "python", "code": "import os; print(os.environ['A'])", "env": {"A": "é"}}, "é\n"),
        ({"kind": "python", "code": "print(input())", "stdin": "hello\n"}, "hello\n"),
        ({"kind": "python", "code": "print(input())", "stdin_b64": "aGk="}, "hi\n"),
    ],
)
def test_each_form_of_003_runs(service: Service, asked: dict[str, Any], expected: str) -> None:
    told = ran(service.ask("POST", "/sandbox/execs", {"project_id": "forms", "exec": asked}))
    assert told["stdout"] == expected, told


def test_a_script_among_the_inputs_runs_as_python_would_run_it(service: Service) -> None:
    script = "import sys, beside\nprint(sys.argv, __file__, __name__, beside.x)"
    told = ran(
        service.ask(
            "POST",
            "/sandbox/execs",
            {
                "project_id": "script",
                "exec": {"kind": "python", "command": "python", "args": ["/workspace/inputs/main.py", "1"]},
                "inputs": [{"path": "main.py", "content": script}, {"path": "beside.py", "content": "x = 7"}],
            },
        )
    )
    assert told["stdout"] == "['/workspace/inputs/main.py', '1'] /workspace/inputs/main.py __main__ 7\n", told


@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        ({"kind": "shell", "command": "sh", "args": ["-lc", "x"]}, 400, "wrong_command"),
        ({"kind": "shell", "command": "bash", "args": ["script.sh"]}, 400, "wrong_command"),
        ({"kind": "python", "command": "bash", "args": ["-c", "x"]}, 400, "wrong_command"),
        ({"kind": "python", "command": "python", "args": ["-m", "http.server"]}, 400, "wrong_command"),
        ({"kind": "python", "command": "python"}, 400, "wrong_command"),
        ({"kind": "python"}, 400, "wrong_command"),
        ({"kind": "python", "args": ["/etc/passwd"]}, 400, "path_traversal"),
        ({"kind": "python", "args": ["../../x.py"]}, 400, "path_traversal"),
        ({"kind": "shell", "code": "x", "cwd": "/etc"}, 400, "path_traversal"),
        ({"kind": "shell", "code": "x", "cwd": "../x"}, 400, "path_traversal"),
        ({"kind": "python", "code": "x", "cwd": "/workspace/../etc"}, 400, "path_traversal"),
        ({"kind": "python", "code": "x", "command": "python"}, 422, "invalid_request"),
        ({"kind": "perl", "code": "x"}, 422, "invalid_request"),
        ({"kind": "python", "code": "x", "unknown": 1}, 422, "invalid_request"),
        ({"kind": "python", "code": 7}, 422, "invalid_request"),
        ({"kind": "python", "code": "x", "env": {"A B": "1"}}, 422, "invalid_env"),
        ({"kind": "python", "code": "x\0y"}, 422, "nul_byte"),
        ({"kind": "python", "code": "input()", "stdin": "a", "stdin_b64": "aGk="}, 422, "invalid_content"),
    ],
)
def test_what_003_does_not_know_is_refused(service: Service, asked: dict[str, Any], status: int, reason: str) -> None:
    answer = service.ask("POST", "/sandbox/execs", {"project_id": "p", "exec": asked})
    assert (answer.status, answer.reason) == (status, reason), answer.body


def test_inputs_of_text_and_of_bytes_are_there_and_cannot_be_changed(service: Service) -> None:
    code = (
        "print(open('/workspace/inputs/a/t.txt').read(), open('/workspace/inputs/b.bin','rb').read())\n"
        "try: open('/workspace/inputs/b.bin','wb')\n"
        "except OSError as e: print(type(e).__name__)"
    )
    inputs = [{"path": "a/t.txt", "content": "é"}, {"path": "b.bin", "content_b64": "AAH/"}]
    told = ran(post(service, code, inputs=inputs))
    assert told["stdout"].splitlines()[0] == "é b'\\x00\\x01\\xff'"
    assert told["stdout"].splitlines()[1] in ("OSError", "PermissionError")


def test_a_project_or_a_conversation_is_needed(service: Service) -> None:
    asked = {"exec": {"kind": "python", "code": "print(1)"}}
    answer = service.ask("POST", "/sandbox/execs", asked)
    assert (answer.status, answer.reason) == (422, "invalid_request")
    told = ran(service.ask("POST", "/sandbox/execs", {**asked, "conversation_id": "c-1"}))
    assert told["artifacts_dir"] == f"projects/c-1/artifacts/{told['exec_id']}"
    told = ran(service.ask("POST", "/sandbox/execs", {**asked, "ephemeral": True}))
    assert told["artifacts_dir"] is None


def test_an_unknown_skill_is_not_found(service: Service) -> None:
    answer = post(service, "print(1)", skill_id="no.such")
    assert (answer.status, answer.reason) == (404, "not_found")


def test_limits_can_be_narrowed_and_not_widened(service: Service) -> None:
    told = ran(post(service, "while True: pass", policy_overrides={"timeout_ms": 300}))
    assert (told["status"], told["timed_out"], told["reason"]) == ("timed_out", True, "wall_timeout")
    told = ran(post(service, "print('x' * 100)", policy_overrides={"limits": {"stdout_bytes": 10}}))
    assert (told["stdout_truncated"], told["exit_code"]) == (True, 0)
    for overrides in ({"timeout_ms": 10**9}, {"memory_mb": 10**7}, {"limits": {"pids": 10**6}}):
        answer = post(service, "print(1)", policy_overrides=overrides)
        assert (answer.status, answer.reason) == (403, "limit_exceeds_ceiling"), answer.body
        assert "limit" in answer.json["details"]
    answer = post(service, "print(1)", policy_overrides={"net": {"mode": "unrestricted"}})
    assert (answer.status, answer.reason) == (403, "not_granted")
    assert ran(post(service, "print(1)", policy_overrides={"net": {"mode": "none"}}))["success"]


def test_hosts_can_be_asked_for_and_are_refused_where_no_policy_grants_them(service: Service) -> None:
    net = {"mode": "allowlist", "domains": ["example.com"]}
    answer = post(service, "print(1)", policy_overrides={"net": net})
    assert (answer.status, answer.reason) == (403, "domain")
    for wrong in ({"mode": "none", "domains": ["example.com"]}, {"mode": "allowlist", "domains": ["*.com"]}):
        answer = post(service, "print(1)", policy_overrides={"net": wrong})
        assert answer.status == 422, answer.body
    answer = post(service, "print(1)", policy_overrides={"net": {**net, "domains": ["a.example.com"] * 65}})
    assert answer.status == 422


def test_work_is_kept_between_the_runs_of_a_project(service: Service) -> None:
    ran(post(service, "open('kept.txt','w').write('1')", project_id="keeps"))
    assert ran(post(service, "print(open('kept.txt').read())", project_id="keeps"))["stdout"] == "1\n"
    assert ran(post(service, "print(open('kept.txt').read())", project_id="another"))["status"] == "failed"


def test_the_detail_has_the_twenty_fields_and_agrees_with_what_was_told(service: Service) -> None:
    first = ran(post(service, "print(1)", task_ref="t20", policy_overrides={"timeout_ms": 5000}))
    detail = service.ask("GET", f"/sandbox/execs/{first['exec_id']}").json
    assert set(COLUMNS) <= detail.keys()
    assert {name: detail[name] for name in first} == first
    assert (detail["project_id"], detail["task_id"], detail["cmd"]) == ("p", "t20", "python")


def test_a_list_is_filtered_and_comes_in_pages(service: Service) -> None:
    ids = [ran(post(service, f"print({n})", task_ref={"task_id": "paged"}))["exec_id"] for n in range(3)]
    first = service.ask("GET", "/sandbox/execs?task_id=paged&limit=2").json
    assert [item["exec_id"] for item in first["items"]] == [ids[2], ids[1]]
    rest = service.ask("GET", f"/sandbox/execs?task_id=paged&limit=2&cursor={first['next_cursor']}").json
    assert [item["exec_id"] for item in rest["items"]] == [ids[0]]
    assert rest["next_cursor"] is None
    for query in ("limit=0", "limit=201", "cursor=x", "status=odd", "unknown=1", "limit=x"):
        assert service.ask("GET", f"/sandbox/execs?{query}").reason in ("invalid_request", "invalid_range")


# --- artifacts and output ---


def test_artifacts_are_listed_and_downloaded(service: Service) -> None:
    code = (
        "import os; os.makedirs('/workspace/artifacts/d')\n"
        "open('/workspace/artifacts/d/ü b.html','w').write('<script>alert(1)</script>')\n"
        "open('/workspace/artifacts/stdout.txt','w').write('mine')"
    )
    told = ran(post(service, code))
    listed = service.ask("GET", f"/sandbox/execs/{told['exec_id']}/artifacts").json
    assert {each["path"] for each in listed["artifacts"]} == {"d/ü b.html", "stdout.txt"}
    got = service.ask("GET", f"/sandbox/execs/{told['exec_id']}/artifacts/d/%C3%BC%20b.html")
    assert got.body == b"<script>alert(1)</script>"
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC%20b.html"
    assert got.headers["x-content-type-options"] == "nosniff"
    for each in listed["artifacts"]:
        path = each["path"].encode().decode("latin-1")
        content = service.ask("GET", f"/sandbox/execs/{told['exec_id']}/artifacts/{quoted(each['path'])}").body
        assert hashlib.sha256(content).hexdigest() == each["sha256"], path
    assert ran(post(service, "pass"))["artifacts"] == []


def quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def test_an_artifact_that_is_not_there_is_not_said_to_be_an_execution_that_is_not(service: Service) -> None:
    exec_id = ran(post(service, "print(1)"))["exec_id"]
    answer = service.ask("GET", f"/sandbox/execs/{exec_id}/artifacts/nothing")
    assert (answer.status, answer.reason) == (404, "not_found")
    assert answer.json["detail"] == "the execution left no artifact of this name"


def test_output_is_fetched_as_it_was_written(service: Service) -> None:
    told = ran(post(service, r"import sys; sys.stdout.buffer.write(b'\xff<b>'); sys.stderr.write('e')"))
    got = service.ask("GET", f"/sandbox/execs/{told['exec_id']}/stdout")
    assert (got.status, got.body) == (200, b"\xff<b>")
    assert got.headers["content-type"].startswith("text/plain")
    assert got.headers["x-content-type-options"] == "nosniff"
    assert service.ask("GET", f"/sandbox/execs/{told['exec_id']}/stderr").body == b"e"


def test_a_run_that_leaves_nothing_behind_can_still_be_fetched_a_moment_later(service: Service) -> None:
    code = "print(1); open('/workspace/artifacts/a.bin','wb').write(b'\\x00\\x01')"
    told = ran(service.ask("POST", "/sandbox/execs", {"ephemeral": True, "exec": {"kind": "python", "code": code}}))
    base = f"/sandbox/execs/{told['exec_id']}"
    assert service.ask("GET", f"{base}/artifacts/a.bin").body == b"\x00\x01"
    assert service.ask("GET", f"{base}/stdout").body == b"1\n"
    assert service.ask("GET", base).json["stdout"] == "1\n"


# --- waiting, cancelling, following ---


def test_who_does_not_wait_is_told_where_to_look(service: Service) -> None:
    answer = post(service, "print('later')", wait=False)
    assert answer.status == 202
    exec_id = answer.json["exec_id"]
    last = events(service, exec_id)[-1]
    assert last["event"] == "result"
    assert last["data"]["stdout"] == "later\n"
    assert service.ask("GET", f"/sandbox/execs/{exec_id}").json["status"] == "succeeded"


def test_a_run_is_cancelled_once_and_for_all(service: Service) -> None:
    exec_id = post(service, "import time; print('up', flush=True); time.sleep(60)", wait=False).json["exec_id"]
    wait_for_output(service, exec_id)
    assert service.ask("GET", f"/sandbox/execs/{exec_id}").json["status"] == "running"
    assert service.ask("GET", f"/sandbox/execs/{exec_id}/stdout").reason == "unfinished"
    for _ in range(2):
        answer = service.ask("POST", f"/sandbox/execs/{exec_id}/cancel")
        assert (answer.status, answer.json["status"]) == (200, "cancelled")
    assert service.ask("GET", f"/sandbox/execs/{exec_id}").json["status"] == "cancelled"


def test_what_a_cancelled_run_had_printed_is_kept_and_what_it_wrote_is_not(service: Service) -> None:
    code = (
        "import sys, time; open('kept?', 'w').close(); open('/workspace/artifacts/a', 'w').close()\n"
        "print('err', file=sys.stderr, flush=True); print('up', flush=True); time.sleep(60)"
    )
    exec_id = post(service, code, wait=False, project_id="cancelled").json["exec_id"]
    wait_for_output(service, exec_id, b"up")
    told = service.ask("POST", f"/sandbox/execs/{exec_id}/cancel").json
    assert (told["status"], told["killed_by"], told["reason"]) == ("cancelled", "cancelled", "cancelled")
    assert (told["stdout"], told["stderr"], told["exit_code"]) == ("up\n", "err\n", None)
    assert told["elapsed_ms"] > 0
    assert told["error"] == "the run was ended by its caller, and what it wrote to files was not kept"
    again = service.ask("GET", f"/sandbox/execs/{exec_id}").json
    assert {name: again[name] for name in told} == told
    assert service.ask("GET", f"/sandbox/execs/{exec_id}/stdout").body == b"up\n"
    assert service.ask("GET", f"/sandbox/execs/{exec_id}/stderr").body == b"err\n"
    assert service.ask("GET", f"/sandbox/execs/{exec_id}/artifacts").json["artifacts"] == []
    assert events(service, exec_id)[-1]["data"]["stdout"] == "up\n"
    kept = service.home / "workspace" / told["artifacts_dir"]
    assert sorted(each.name for each in kept.iterdir()) == ["manifest.json", "meta.json", "stderr.txt", "stdout.txt"]
    assert json.loads((kept / "meta.json").read_bytes())["status"] == "cancelled"
    assert post(service, "import os; print(os.listdir())", project_id="cancelled").json["stdout"] == "[]\n"
    end = service.ask("GET", f"/evidence/{exec_id}").json["records"][-1]["record"]
    assert (end["outcome"], end["killed_by"]) == ("cancelled", "cancelled")
    assert (end["stdout"]["bytes"], end["stderr"]["bytes"]) == (3, 4)


def test_a_refusal_under_a_key_is_given_again_and_says_so(service: Service) -> None:
    asked = {"policy_overrides": {"net": {"mode": "allowlist", "domains": ["example.com"]}}}
    first, again = (post(service, "", key="refused", **asked) for _ in range(2))
    assert (first.status, first.reason, first.headers.get("idempotency-replayed")) == (403, "domain", None), first.body
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (403, first.body, "true")
    other = post(service, "print(2)", key="refused")
    assert (other.status, other.headers.get("idempotency-replayed")) == (409, None), other.body


def test_output_comes_while_the_run_goes_on_and_again_from_where_one_left_off(service: Service) -> None:
    code = "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.05)"
    exec_id = post(service, code, wait=False).json["exec_id"]
    told = events(service, exec_id)
    output = b"".join(base64.b64decode(each["data"]["data_b64"]) for each in told if each["event"] == "output")
    assert output == b"0\n1\n2\n"
    assert [each["id"] for each in told] == list(range(1, len(told) + 1))
    assert [each["data"]["status"] for each in told if each["event"] == "status"][-1] == "succeeded"
    again = events(service, exec_id, after=told[2]["id"])
    assert again == told[3:]


def test_a_client_that_hangs_up_while_its_run_goes_on_changes_nothing(service: Service) -> None:
    code = "import time; print('up', flush=True); time.sleep(0.5); print('done')"
    body = json.dumps({"project_id": "p", "exec": {"kind": "python", "code": code}, "task_ref": "hangs-up"}).encode()
    with service.connect() as wire:
        wire.sendall(
            b"POST /sandbox/execs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + f"Authorization: Bearer {service.key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        found: list[Any] = []
        while not found:
            found = service.ask("GET", "/sandbox/execs?task_id=hangs-up&status=running").json["items"]
        wait_for_output(service, found[0]["exec_id"])
    last = events(service, found[0]["exec_id"])[-1]
    assert last["data"]["stdout"] == "up\ndone\n"


def events(service: Service, exec_id: str, after: int | None = None) -> list[dict[str, Any]]:
    return list(follow(service, exec_id, after))


def wait_for_output(service: Service, exec_id: str, words: bytes = b"") -> None:
    for event in follow(service, exec_id):
        if event["event"] == "output" and words in base64.b64decode(event["data"]["data_b64"]):
            return
    raise AssertionError("it ended without a word")


def follow(service: Service, exec_id: str, after: int | None = None) -> Iterator[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
    headers = {"Authorization": f"Bearer {service.key}"}
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    try:
        connection.request("GET", f"/sandbox/execs/{exec_id}/events", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, Any] = {}
        for line in answer:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if not name and "event" in fields:
                yield {**fields, "id": int(fields["id"]), "data": json.loads(fields["data"])}
                fields = {}
            elif name in ("id", "event", "data"):
                fields[name] = value
    finally:
        connection.close()


# --- operations ---


def test_files_are_written_read_listed_and_deleted_by_operations(service: Service) -> None:
    def do(**operation: Any) -> Answer:
        return service.ask("POST", "/sandbox/ops", {"project_id": "ops", "operation": operation})

    content = base64.b64encode(b"hi").decode()
    assert do(op="fs_write", path="work/a.txt", bytes_b64=content).status == 200
    assert base64.b64decode(do(op="fs_read", path="work/a.txt").json["content_b64"]) == b"hi"
    assert do(op="fs_stat", path="work/a.txt").status == 200
    assert ran(post(service, "print(open('a.txt').read())", project_id="ops"))["stdout"] == "hi\n"
    assert do(op="fs_delete", path="work/a.txt").status == 200
    gone = do(op="fs_read", path="work/a.txt")
    assert (gone.status, gone.reason) == (404, "not_found")
    assert do(op="fs_read", path="../../etc/passwd").status in (400, 403)
    assert do(op="rm_rf").reason == "invalid_operation"
    assert do(op="net_http", method="GET", url="http://example.org/").status == 403


# --- a restart under load ---


@pytest.mark.timeout(120 * SOAK)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_service_that_is_ended_under_load_runs_every_key_exactly_once(tmp_path: Path, signum: int) -> None:
    clients, each = 8, 3 * SOAK
    keys = [[f"client-{client}-{number}" for number in range(each)] for client in range(clients)]
    first_dead = threading.Event()
    acknowledged: dict[str, str] = {}
    with serving(tmp_path) as first:
        key = first.key

        def ask(own: list[str]) -> None:
            for one in own:
                body = {"project_id": "load", "exec": {"kind": "python", "code": "print(1)"}, "task_ref": one}
                try:
                    got = first.ask(
                        "POST", "/sandbox/execs", {**body, "wait": one.endswith("1")}, headers={"Idempotency-Key": one}
                    )
                except (OSError, http.client.HTTPException):
                    return
                if got.status in (201, 202):
                    acknowledged[one] = got.json["exec_id"]
                if len(acknowledged) >= clients * each // 2:
                    first_dead.set()

        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(ask, own) for own in keys]
            first_dead.wait(PATIENCE_SECONDS)
            first.end(signum)
            for client in asking:
                client.result()
    assert len(acknowledged) >= clients * each // 2
    with serving(tmp_path) as second:

        def again(one: str) -> tuple[str, dict[str, Any]]:
            body = {"project_id": "load", "exec": {"kind": "python", "code": "print(1)"}, "task_ref": one}
            got = second.ask("POST", "/sandbox/execs", body, key=key, headers={"Idempotency-Key": one})
            return one, got.json

        with ThreadPoolExecutor(clients) as pool:
            answers = dict(pool.map(again, [one for own in keys for one in own]))
        for one, answer in answers.items():
            # what had begun when the service died is lost, is said to be, and is not run again
            assert answer["status"] == "succeeded" or answer["reason"] == "orphaned", (one, answer)
            assert acknowledged.get(one, answer["exec_id"]) == answer["exec_id"]
        assert second.end() == 0
    database = SqliteDatabase.in_home(tmp_path)
    with database.reading() as cursor:
        counted = dict(
            cursor.execute("SELECT task_id, count(*) FROM journal_exec WHERE task_id IS NOT NULL GROUP BY 1").fetchall()
        )
        (left,) = cursor.execute("SELECT count(*) FROM service_exec WHERE request IS NOT NULL").fetchone()
        begun = cursor.execute(
            "SELECT exec_id, count(*) FROM journal_record WHERE type = 'exec.begin' GROUP BY 1 HAVING count(*) > 1"
        ).fetchall()
    database.close()
    assert counted == {one: 1 for own in keys for one in own}
    assert left == 0
    assert begun == []
    told(tmp_path, "evidence", "verify")
