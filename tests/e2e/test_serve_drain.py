"""How a service ends while it works: what runs may finish, what is new is sent away, and nobody waits for ever."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import PATIENCE_SECONDS, told
from tests.http_service import Answer, Service, exchange, serving

pytestmark = pytest.mark.needs("native")

UNTIL_TOLD = (
    "import os, time\nprint('here', flush=True)\nwhile not os.path.exists('/workspace/inputs/never'): time.sleep(0.05)"
)
FOR_A_WHILE = "import time\nprint('here', flush=True)\ntime.sleep(2)\nprint('done')"


def started(service: Service, code: str) -> str:
    """Start an execution and return its id once it has said something."""
    body = {"project_id": "p", "exec": {"kind": "python", "code": code}, "inputs": [], "wait": False}
    made = service.ask("POST", "/sandbox/execs", body)
    assert made.status == 202, made.body
    exec_id: str = made.json["exec_id"]
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
    connection.request("GET", f"/sandbox/execs/{exec_id}/events", headers={"Authorization": f"Bearer {service.key}"})
    events = connection.getresponse()
    while b"aGVyZQ" not in (line := events.readline()):  # "here", in base64
        assert line, "the events ended before it said anything"
    connection.close()
    return exec_id


def waiting(service: Service, code: str) -> tuple[threading.Thread, list[Answer]]:
    """Have somebody wait for an execution; what is answered comes into the list."""
    answers: list[Answer] = []
    body = {"project_id": "p", "exec": {"kind": "python", "code": code}, "inputs": [], "wait": True}

    def wait() -> None:
        answers.append(service.ask("POST", "/sandbox/execs", body))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, answers


def records(home: Path) -> dict[str, Any]:
    return {row["exec_id"]: row for row in told(home, "evidence", "list")["execs"]}


def test_what_runs_may_finish_and_what_is_new_is_sent_away(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        thread, answers = waiting(service, FOR_A_WHILE)
        started(service, FOR_A_WHILE)  # and by then the other one runs too, or waits for its turn
        kept = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
        assert exchange(kept, "GET", "/keys", None, service.key, None).status == 200
        service.process.send_signal(signal.SIGTERM)
        # the connection that was there answers still: with no new work
        refused = _until_draining(kept, service)
        assert (refused.status, refused.reason) == (503, "draining")
        assert int(refused.headers["retry-after"]) >= 1
        thread.join(PATIENCE_SECONDS)
        assert service.process.wait(PATIENCE_SECONDS) == 0
        kept.close()
    assert answers[0].status in (201, 503)
    assert {row["outcome"] for row in records(tmp_path).values()} == {"succeeded"}
    assert told(tmp_path, "evidence", "verify")["verdict"] == "proven"


def test_what_was_promised_and_has_not_begun_still_waits_while_the_service_ends(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SANDBOX_MAX_CONCURRENT_EXECS="1") as service:
        started(service, FOR_A_WHILE)
        body = {"project_id": "p", "exec": {"kind": "python", "code": "print('later')"}, "wait": False}
        promised = service.ask("POST", "/sandbox/execs", body).json["exec_id"]
        path = f"/sandbox/execs/{promised}"
        kept = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
        assert exchange(kept, "GET", path, None, service.key, None).json["status"] == "queued"
        service.process.send_signal(signal.SIGTERM)
        _until_draining(kept, service)
        events = exchange(kept, "GET", f"{path}/events", None, service.key, None).body.decode()
        assert [line for line in events.splitlines() if line.startswith("event")] == ["event: status", "event: problem"]
        assert '"reason":"draining"' in events
        assert exchange(kept, "GET", path, None, service.key, None).json["status"] == "queued"
        kept.close()
        assert service.process.wait(PATIENCE_SECONDS) == 0
        key = service.key
    with serving(tmp_path) as service:
        for _ in range(100):
            seen = service.ask("GET", path, key=key).json
            if seen["status"] not in ("queued", "running"):
                break
            time.sleep(0.05)
        assert (seen["status"], seen["stdout"]) == ("succeeded", "later\n")


def _until_draining(kept: http.client.HTTPConnection, service: Service) -> Answer:
    while True:  # a signal is delivered when it is
        answer = exchange(kept, "POST", "/keys", {"access": "god"}, service.key, None)
        if answer.status != 422:
            return answer


def test_what_takes_longer_than_the_settings_allow_is_cancelled_and_recorded(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SERVER_DRAIN_SECONDS="0.5") as service:
        exec_id = started(service, UNTIL_TOLD)
        assert service.end() == 0
    assert records(tmp_path)[exec_id]["outcome"] == "cancelled"
    assert told(tmp_path, "evidence", "verify")["verdict"] == "proven"


def test_a_process_that_would_run_for_ever_ends_with_the_service(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SERVER_DRAIN_SECONDS="0.5") as service:
        made = service.ask("POST", "/sandbox/processes", {"project_id": "p", "exec": {"kind": "shell", "code": "cat"}})
        assert made.status in (201, 202), made.body
        assert service.end() == 0
    assert records(tmp_path)[made.json["exec_id"]]["outcome"] in ("cancelled", "killed")
    assert told(tmp_path, "evidence", "verify")["verdict"] == "proven"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SERVER_DRAIN_SECONDS="3600") as service:
        exec_id = started(service, UNTIL_TOLD)
        service.process.send_signal(signal.SIGTERM)
        kept = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
        assert _until_draining(kept, service).reason == "draining"
        kept.close()
        assert service.end(signal.SIGTERM) == -signal.SIGKILL
    # the next service finds what the last one left, and says so
    with serving(tmp_path) as service:
        assert service.end() == 0
    assert records(tmp_path)[exec_id]["outcome"] in ("error", "orphaned (not yet closed)")


def test_an_answer_of_health_says_that_the_service_is_ending(tmp_path: Path) -> None:
    with serving(tmp_path, RINGFENCE_SERVER_DRAIN_SECONDS="3600") as service:
        started(service, UNTIL_TOLD)
        kept = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
        service.process.send_signal(signal.SIGINT)
        _until_draining(kept, service)
        got = exchange(kept, "GET", "/sandbox/health", None, None, None)
        assert json.loads(got.body) == {"status": "draining"}
        kept.close()
        service.end(signal.SIGKILL)
