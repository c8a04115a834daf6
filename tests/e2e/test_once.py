"""`Idempotency-Key` on everything that is asked for with POST and is no execution: carried out once, answered alike."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import PATIENCE_SECONDS
from tests.http_service import Answer, Service, serving

from ringfence.database.sqlite import SqliteDatabase
from ringfence.errors import InvalidRequest, Overloaded
from ringfence.service import answers
from ringfence.service.answers import AnswerStore, Kept, claim_for
from ringfence.service.exec_store import KEPT_MS

pytestmark = pytest.mark.needs("native")
START = {"project_id": "p", "exec": {"kind": "shell", "code": "echo started; sleep 300"}, "wait_ms": 5000}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def keys(service: Service) -> dict[str, str]:
    return {tenant: service.make_key("agent", tenant) for tenant in ("acme", "other")}


def post(service: Service, caller: str, path: str, body: Any, once: str | None) -> Answer:
    return service.ask("POST", path, body, key=caller, headers=None if once is None else {"Idempotency-Key": once})


def test_a_process_is_started_once_however_often_and_at_once_it_is_asked_for(
    service: Service, keys: dict[str, str]
) -> None:
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda _: post(service, keys["acme"], "/sandbox/processes", START, "start"), range(6)))
    assert {answer.status for answer in got} == {201}
    assert len({answer.body for answer in got}) == 1
    assert Counter(answer.headers.get("idempotency-replayed") for answer in got) == {None: 1, "true": 5}
    later = post(service, keys["acme"], "/sandbox/processes", START, "start")
    assert (later.body, later.headers["location"]) == (got[0].body, got[0].headers["location"])
    assert len(service.ask("GET", "/sandbox/processes", key=keys["acme"]).json["items"]) == 1
    other = post(service, keys["acme"], "/sandbox/processes", {**START, "project_id": "q"}, "start")
    assert (other.status, other.reason) == (409, "idempotency_mismatch")
    elsewhere = post(service, keys["acme"], "/sandbox/workspaces/p/reset", {}, "start")
    assert (elsewhere.status, elsewhere.reason) == (409, "idempotency_mismatch")
    theirs = post(service, keys["other"], "/sandbox/processes", START, "start")
    assert theirs.status == 201
    assert theirs.json["process_id"] != later.json["process_id"]


def test_an_answer_is_for_whoever_has_the_rights_it_was_given_for(service: Service, keys: dict[str, str]) -> None:
    made = post(service, keys["acme"], "/sandbox/processes/none/kill", {}, "rights")
    assert made.status == 404
    looker = service.make_key("operator", "acme")
    assert post(service, looker, "/sandbox/processes/none/kill", {}, "rights").reason == "idempotency_mismatch"


def test_a_skill_runs_once_and_its_outputs_are_given_again(service: Service, keys: dict[str, str]) -> None:
    body = {"inputs": {"code": "import secrets; print(secrets.token_hex())"}, "project_id": "s"}
    first, again = (post(service, keys["acme"], "/skills/python.run/invoke", body, "skill") for _ in range(2))
    assert (first.status, first.json["success"]) == (200, True), first.body
    assert (again.body, again.headers["idempotency-replayed"]) == (first.body, "true")
    assert post(service, keys["acme"], "/skills/python.run/invoke", body, None).json["outputs"] != first.json["outputs"]


def test_who_leaves_finds_the_outputs_of_his_skill_later(service: Service, keys: dict[str, str]) -> None:
    body = {"inputs": {"code": "import time; time.sleep(0.5); print('done')"}, "project_id": "s"}
    content = json.dumps(body).encode()
    with service.connect() as wire:
        wire.sendall(
            b"POST /skills/python.run/invoke HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            + f"Authorization: Bearer {keys['acme']}\r\nIdempotency-Key: left\r\n".encode()
            + f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        while not service.ask("GET", "/sandbox/execs?status=running", key=keys["acme"]).json["items"]:
            pass
    again = post(service, keys["acme"], "/skills/python.run/invoke", body, "left")
    assert (again.status, again.json["success"], again.headers["idempotency-replayed"]) == (200, True, "true")


def test_what_creates_or_changes_happens_once(service: Service, keys: dict[str, str]) -> None:
    service.ask("PUT", "/sandbox/workspaces/w/files?path=work/a", b"1", key=keys["acme"])
    for path, body in (
        ("/sandbox/workspaces/w/snapshots", {"label": "x"}),
        ("/sandbox/workspaces/w/reset", {"snapshot_before": True}),
        ("/sandbox/ops", {"project_id": "w", "operation": {"op": "ws_snapshot", "label": "y"}}),
    ):
        first, again = (post(service, keys["acme"], path, body, path) for _ in range(2))
        assert first.status in (200, 201), first.body
        assert (again.body, again.headers["idempotency-replayed"]) == (first.body, "true")
    listed = service.ask("GET", "/sandbox/workspaces/w/snapshots", key=keys["acme"]).json["snapshots"]
    assert [info["label"] for info in listed] == ["x", "before reset", "y"]


@pytest.mark.parametrize("once", ["", "k" * 256, "k\x7f", "ü"])
def test_what_is_no_key_is_refused_and_nothing_happens(service: Service, keys: dict[str, str], once: str) -> None:
    got = post(service, keys["other"], "/sandbox/workspaces/none/reset", {}, once)
    assert (got.status, got.reason) == (422, "invalid_name")


def test_what_is_shown_once_is_kept_nowhere(service: Service) -> None:
    body = {"access": "agent", "tenant": "acme"}
    got = service.ask("POST", "/keys", body, headers={"Idempotency-Key": "k"})
    assert (got.status, got.reason) == (422, "shown_once")
    assert service.ask("POST", "/keys", body).status == 201


def test_a_service_that_is_killed_under_load_starts_nothing_twice(tmp_path: Path) -> None:
    names = [f"start-{number}" for number in range(16)]
    told: dict[str, bytes] = {}
    enough = threading.Event()

    def body(name: str) -> dict[str, Any]:
        return {"exec": {"kind": "shell", "code": "true"}, "ephemeral": True, "task_ref": name, "wait_ms": 0}

    with serving(tmp_path) as first:
        caller = first.make_key("agent", "acme")

        def ask(name: str) -> None:
            try:
                got = post(first, caller, "/sandbox/processes", body(name), name)
            except (OSError, http.client.HTTPException):
                return
            if got.status == 201:
                told[name] = got.body
            if len(told) >= 5:
                enough.set()

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, name) for name in names]
            enough.wait(PATIENCE_SECONDS)
            first.end(signal.SIGKILL)
            for each in asking:
                each.result()
    with serving(tmp_path) as second:
        for name in names:
            got = post(second, caller, "/sandbox/processes", body(name), name)
            while got.status == 429:  # as many processes as may run: nothing was begun, and the key is free again
                got = post(second, caller, "/sandbox/processes", body(name), name)
            assert got.body == told.get(name, got.body)
            assert got.status == 201 or got.reason == "unanswered", got.body
        assert second.end() == 0
    with SqliteDatabase.in_home(tmp_path).reading() as cursor:
        counted = dict(cursor.execute("SELECT task_id, count(*) FROM journal_exec GROUP BY 1").fetchall())
    assert set(told) <= set(counted) <= set(names)
    assert set(counted.values()) == {1}


def test_keys_are_given_back_after_a_day_and_a_tenant_has_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_KEYS", 2)
    store, kept = AnswerStore(SqliteDatabase.in_home(tmp_path)), Kept(201, (("location", "/x"),), b"{}")
    one, two, three = (claim_for("acme", key, "body") for key in "abc")
    assert store.begin(one, 0) is None
    with pytest.raises(InvalidRequest) as begun:
        store.begin(one, 1)
    assert begun.value.reason == "unanswered"
    store.answered(one, kept)
    assert store.begin(one, 1) == kept
    assert store.begin(two, 1) is None
    with pytest.raises(Overloaded) as refused:
        store.begin(three, 1)
    assert refused.value.reason == "idempotency_keys"
    assert store.begin(claim_for("other", "c", "body"), 1) is None
    store.forget(two)
    assert store.begin(three, 1) is None
    assert store.begin(one, KEPT_MS) is None
