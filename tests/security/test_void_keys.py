"""G22: what a key was promised does not begin once it is void, and what it began is ended; the evidence says why.

Seen red: what a revoked key had waiting ran when its turn came, also after a restart.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told
from tests.http_service import Service, serving

from ringfence.database.address import open_database
from ringfence.journal.reader import reading

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(22, 23)]


def ask(service: Service, key: str, code: str, **more: Any) -> str:
    body = {"project_id": "p", "exec": {"kind": "shell", "code": code}, "wait": False, **more}
    made = service.ask("POST", "/sandbox/execs", body, key=key)
    assert made.status == 202, made.body
    return str(made.json["exec_id"])


def until(service: Service, key: str, exec_id: str, *statuses: str) -> Any:
    while (seen := service.ask("GET", f"/sandbox/execs/{exec_id}", key=key).json)["status"] not in statuses:
        pass
    return seen


def kinds(home: Path, *exec_ids: str) -> Counter[tuple[str, str]]:
    with reading(open_database(home, None)) as reader:
        texts = [str(record.text) for log in reader.logs() for record in reader.records(log.number)]
    found = [json.loads(text) for text in texts if text.startswith("{")]
    return Counter((each["exec_id"], each["type"]) for each in found if each.get("exec_id") in exec_ids)


def test_a_revoked_key_starts_nothing_more_and_what_it_runs_is_ended(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SANDBOX_MAX_CONCURRENT_EXECS="1") as service:
        mate = service.make_key("agent", "acme")
        made = service.ask("POST", "/keys", {"access": "agent", "tenant": "acme"}).json
        running = ask(service, made["key"], "sleep 300")
        until(service, mate, running, "running")
        waiting = ask(service, made["key"], "touch ran")
        other = ask(service, mate, "touch other")
        assert service.ask("DELETE", f"/keys/{made['key_id']}").status == 200
        assert until(service, mate, running, "cancelled", "succeeded")["status"] == "cancelled"
        refused = until(service, mate, waiting, "denied", "succeeded")
        assert (refused["status"], refused["reason"]) == ("denied", "key_void")
        assert until(service, mate, other, "succeeded", "denied")["status"] == "succeeded"
        names = service.ask("GET", "/sandbox/workspaces/p/files?path=work", key=mate).json["entries"]
        assert [entry["name"] for entry in names] == ["other"]
        assert service.end() == 0
    assert kinds(tmp_path, running, waiting) == {
        (running, "exec.begin"): 1,
        (running, "exec.key_void"): 1,
        (running, "exec.end"): 1,
        (waiting, "exec.key_void"): 1,
    }


def test_nor_does_it_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SANDBOX_MAX_CONCURRENT_EXECS="1") as first:
        made = told(tmp_path, "key", "create", "--access", "agent", "--tenant", "acme")
        mate = first.make_key("agent", "acme")
        until(first, mate, ask(first, mate, "sleep 300"), "running")
        waiting = ask(first, made["key"], "touch ran")
        first.end(signal.SIGKILL)
    told(tmp_path, "key", "revoke", made["key_id"])
    with serving(tmp_path) as second:
        refused = until(second, mate, waiting, "denied", "succeeded")
        assert (refused["status"], refused["reason"]) == ("denied", "key_void")
        assert second.ask("GET", "/sandbox/workspaces/p/files?path=work/ran", key=mate).status == 404


def test_the_sign_inside_the_door_says_where_to_go_and_nothing_more(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        sign = service.ask("GET", "/", key=service.make_key("auditor", "acme"))
        assert (sign.status, sign.json["health"], sign.json["openapi"]) == (200, "/sandbox/health", "/openapi.json")
        assert "version" not in sign.json
        assert service.ask("GET", sign.json["openapi"], key=service.key).status == 200
        for path in ("/", "//", sign.json["openapi"]):
            assert (service.ask("GET", path, key=None).status, service.ask("POST", "/", {}, key=None).status) == (
                401,
                401,
            )
