"""What is written down of a process: ids, limits and numbers of bytes."""

from __future__ import annotations

from ringfence.evidence.correlation import Correlation
from ringfence.evidence.sealing import Head
from ringfence.processes.records import Ended, Started, ended, started

PROCESS = Started(
    "pr_1",
    "ex_1",
    "acme",
    "somebody",
    "bash",
    session_id="s",
    terminal=(24, 80),
    idle_seconds=1.5,
    wall_seconds=60.0,
    ports=(8001, 8000),
    correlation=Correlation(task_id="t"),
)


def test_both_records_name_the_process_its_run_and_whose_it_is() -> None:
    first = started(PROCESS, "ev_1", now_ms=5)
    last = ended(PROCESS, Ended("timed_out", None, "idle_timeout", 1, 2, 3), "ev_2", now_ms=6)
    shared = {"process_id": "pr_1", "exec_id": "ex_1", "tenant": "acme", "session_id": "s", "task_id": "t"}
    assert shared.items() <= first.items()
    assert shared.items() <= last.items()
    assert (first["terminal"], first["idle_ms"], first["wall_ms"], first["ports"]) == (True, 1500, 60_000, [8000, 8001])
    assert (last["outcome"], last["killed_by"], last["stdin_bytes"], last["stderr_bytes"]) == (
        "timed_out",
        "idle_timeout",
        1,
        3,
    )
    assert "exit_code" not in last


def test_both_have_a_canonical_form() -> None:
    head = Head("lg_1", 0, b"\0" * 32)
    for members in (
        started(PROCESS, "ev_1", now_ms=5),
        ended(PROCESS, Ended("succeeded", 0, None, 0, 0, 0), "ev_2", now_ms=6),
    ):
        sealed, head = head.seal(members)
        assert '"process_id":"pr_1"' in sealed.text
