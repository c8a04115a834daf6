"""`ringfence evidence` over a PostgreSQL server that one home uses, or two share."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, TypedDict

import pytest
from tests.command_line import ringfence, said, told
from tests.e2e.evidence_homes import under_way
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.needs("native")


class Server(TypedDict):
    """What of its environment has the command keep the evidence there."""

    RINGFENCE_DATABASE: str


@pytest.mark.needs("postgres")
def test_evidence_on_a_server_is_used_the_same(tmp_path: Path, postgres: PostgresServer) -> None:
    home = tmp_path / "home"
    server = Server(RINGFENCE_DATABASE=postgres.new_database())
    said(home, "run", "-c", "print(1)", "--correlate", "task=T-7", **server)
    with under_way(home, **server) as process:
        (row,) = told(home, "evidence", "list", "--status", "running", **server)["execs"]
        assert row["outcome"] == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
    (left,) = told(home, "evidence", "list", "--status", "running", **server)["execs"]
    assert left["outcome"] == "orphaned (not yet closed)"
    said(home, "run", "-c", "print(2)", **server)
    assert [each["outcome"] for each in told(home, "evidence", "list", **server)["execs"]] == [
        "succeeded",
        "error",
        "succeeded",
    ]
    assert "verified" in said(home, "evidence", "show", by_task(home, "T-7", server)["exec_id"], **server)
    assert told(home, "evidence", "verify", **server)["records"] == 6
    for kind in ("bundle", "log"):
        file = tmp_path / kind
        said(home, "evidence", "export", "--format", kind, "--output", str(file), **server)
        told(None, "evidence", "verify", str(file), "--key", said(home, "evidence", "key", **server).strip())
    assert told(home, "evidence", "replay", "--since", "1h", **server)["same"] == 3
    assert "sandbox_executions_total" in said(home, "metrics", **server)
    said(home, "evidence", "hold", "add", "task_id=T-7", **server)
    assert told(home, "evidence", "prune", "--older-than", "0s", "--yes", **server)["gone"]["texts"] >= 4
    assert by_task(home, "T-7", server)["integrity"] == "intact"
    assert told(home, "evidence", "verify", **server)["verdict"] == "proven"
    assert not (home / "ringfence.db").exists()


@pytest.mark.needs("postgres")
def test_homes_that_share_a_server_prune_it_with_each_others_keys(tmp_path: Path, postgres: PostgresServer) -> None:
    server = Server(RINGFENCE_DATABASE=postgres.new_database())
    homes = [tmp_path / "one", tmp_path / "other"]
    for home in homes:
        said(home, "run", "-c", "print(1)", **server)
    one, other = (said(home, "evidence", "key", **server).strip() for home in homes)
    prune = ("evidence", "prune", "--older-than", "0s", "--yes")
    refused = ringfence(homes[1], *prune, **server)
    assert (refused.returncode, refused.stdout) == (7, "")
    assert "--key" in refused.stderr
    assert told(homes[1], *prune, "--key", one, **server)["gone"]["texts"] >= 4
    assert told(homes[0], "evidence", "verify", "--key", one, "--key", other, **server)["verdict"] == "proven"


def by_task(home: Path, task: str, server: Server) -> dict[str, Any]:
    (row,) = told(home, "evidence", "list", "--task", task, **server)["execs"]
    found: dict[str, Any] = row
    return found
