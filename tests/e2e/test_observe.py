"""Those who watch are told what became durable, and nobody waits for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from ringfence.evidence.note import Checkpoint, open_note, split_notes
from ringfence.journal.signer import key_in_home
from ringfence.journal.signer import verify as verify_signature

pytestmark = pytest.mark.needs("native")

POLICY = "policies: {tools: {code_run: {supported_languages: [python]}}}\n"
PROGRAM = """
import sys
import ringfence
from ringfence import engines
home, policy = sys.argv[1:]
ringfence.run("print(1)", home=home, policy_file=policy)
try:
    ringfence.run("1", language="javascript", home=home, policy_file=policy)
except ringfence.RingfenceError as refused:
    print(refused.details["evidence_id"])
engines._end_all()
"""


@contextmanager
def collector(port: int = 0) -> Iterator[tuple[str, Queue[dict[str, Any]]]]:
    """Listen on a port of loopback, any one unless it is said, and hand out what is posted."""
    told: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ran(home: Path, **environment: str) -> str:
    policy = home.parent / "policy.yaml"
    policy.write_text(POLICY)
    command = [sys.executable, "-c", PROGRAM, str(home), str(policy)]
    done = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_violation_is_told_to_a_webhook_as_it_happens(tmp_path: Path) -> None:
    with collector() as (url, told):
        evidence_id = ran(tmp_path / "home", RINGFENCE_WEBHOOK=url)
        event = told.get(timeout=30)
        assert told.empty()
    assert event["specversion"] == "1.0"
    assert event["data"]["type"] == "decision.denied"
    assert event["data"]["envelope_id"] == evidence_id


def test_switched_off_nothing_leaves_and_everything_is_written(tmp_path: Path) -> None:
    with collector() as (url, told):
        evidence_id = ran(tmp_path / "home", RINGFENCE_WEBHOOK=url, RINGFENCE_OBSERVE="off")
        assert told.empty()
    assert evidence_id.startswith("ev_")


def test_a_webhook_that_does_not_answer_stops_nothing(tmp_path: Path) -> None:
    with collector() as (url, _):
        pass  # nobody listens there any more
    assert ran(tmp_path / "home", RINGFENCE_WEBHOOK=url).startswith("ev_")


def test_all_of_it_goes_to_the_file_that_the_home_names_and_goes_on_where_it_left_off(tmp_path: Path) -> None:
    home, told = tmp_path / "home", tmp_path / "told.jsonl"
    home.mkdir()
    (home / "config.toml").write_text(f'[observe]\nsinks = [{{kind = "file", path = "{told}"}}]\n')
    ran(home)
    ran(home)
    events = [json.loads(line) for line in told.read_text().splitlines()]
    kinds = [event["data"]["type"] for event in events]
    assert kinds == ["policy.loaded", "exec.begin", "exec.end", "decision.denied"] * 2
    assert len({event["id"] for event in events}) == 8


def test_a_checkpoint_is_copied_to_a_second_place(tmp_path: Path) -> None:
    home, copies = tmp_path / "home", tmp_path / "checkpoints"
    ran(home, RINGFENCE_CHECKPOINT_COPIES=f"file:{copies}")
    key = key_in_home(home)
    assert key is not None
    ran(home, RINGFENCE_CHECKPOINT_COPIES=f"file:{copies}")
    opened = [open_note(note, [key], verify_signature) for note in split_notes(copies.read_text())]
    assert [Checkpoint.parse(note.text).size for note in opened] == [4, 8]


def test_a_setting_that_is_not_written_right_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        ran(tmp_path / "home", RINGFENCE_OBSERVE="perhaps")
    assert "RINGFENCE_OBSERVE must be on or off" in failed.value.stderr


WITH_OPENTELEMETRY = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stdout)))
trace.set_tracer_provider(provider)

import ringfence
from ringfence import engines

# in one piece: the exporter writes to the same stream from its own thread
print(f"ran {ringfence.run('print(1)').exec_id}", flush=True)
engines._end_all()
"""


@pytest.mark.needs("native")
@pytest.mark.parametrize("asked", [True, False])
def test_the_opentelemetry_of_an_application_gets_a_span_where_the_home_asks_for_it(
    tmp_path: Path, asked: bool
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('[observe]\nsinks = [{kind = "otel"}]\n' if asked else "")
    environment = {**os.environ, "RINGFENCE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", WITH_OPENTELEMETRY], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    exec_id = done.stdout.partition("ran ")[2].split()[0]
    assert (f'"ringfence.exec_id": "{exec_id}"' in done.stdout) is asked
