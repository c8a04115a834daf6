"""The view `sandbox_execs` has the twenty columns of the first design, on both engines alike."""

from __future__ import annotations

import json

from tests.conftest import Databases
from tests.unit.journal.entries import row

from ringfence.budgets.owner import this_process
from ringfence.database.port import Cursor
from ringfence.journal import store
from ringfence.journal.store import Exec

COLUMNS = [
    "exec_id",
    "project_id",
    "task_id",
    "conversation_id",
    "skill_id",
    "image",
    "cmd",
    "args",
    "cwd",
    "env_keys",
    "policy_snapshot",
    "status",
    "exit_code",
    "error_reason",
    "started_at",
    "ended_at",
    "duration_ms",
    "artifacts_path",
    "stdout_truncated",
    "stderr_truncated",
]

BEGIN = {
    "project_id": "p1",
    "task_id": "t1",
    "cmd": "python",
    "args": ["[12 bytes]"],
    "cwd": "/workspace/work",
    "env_keys": ["A", "B"],
    "documents": {"policy": "sha256:ab"},
}
END = {
    "runtime": "python-3.11",
    "exit_code": 7,
    "error_reason": "a \u0000 that one engine cannot keep, and ä ' ? %",
    "finished_at_ms": 1_763_269_201_130,
    "duration_ms": 5,
    "artifacts_path": "projects/p1/artifacts/ex-1",
    "stdout": {"truncated": True},
    "stderr": {"truncated": False},
}


def seen(cursor: Cursor, exec_id: str) -> dict[str, object]:
    found = cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM sandbox_execs WHERE exec_id = ?", (exec_id,)).fetchone()
    return {name: value for name, value in zip(COLUMNS, found, strict=True) if value is not None}


def test_a_run_is_running_then_over_and_both_engines_show_the_same(databases: Databases) -> None:
    with databases.open().transaction() as cursor:
        log = store.take_log(cursor, this_process(), 1, "lg-1")
        store.keep_document(cursor, "sha256:ab", "policy", '{"mode":"auto"}')
        store.append(cursor, log, [row(0, "exec.begin", "ex-1", **BEGIN)])
        store.open_exec(cursor, "ex-1", 1, 0)
        begun = {
            "exec_id": "ex-1",
            "project_id": "p1",
            "task_id": "t1",
            "cmd": "python",
            "cwd": "/workspace/work",
            "policy_snapshot": '{"mode":"auto"}',
            "started_at": 1000,
        }
        running = seen(cursor, "ex-1")
        lists = {"args": ["[12 bytes]"], "env_keys": ["A", "B"]}
        assert {name: json.loads(str(running.pop(name))) for name in lists} == lists
        assert running == begun | {"status": "running"}

        store.append(cursor, log, [row(1, "exec.end", "ex-1", **END)])
        store.close_exec(cursor, Exec("ex-1", 1, 0, 1, 1000, "failed", project_id="p1", task_id="t1"))
        over = seen(cursor, "ex-1")
        for name in lists:
            del over[name]
        assert str(over.pop("error_reason")).endswith("ä ' ? %")
        assert over == begun | {
            "status": "failed",
            "image": "python-3.11",
            "exit_code": 7,
            "ended_at": 1_763_269_201_130,
            "duration_ms": 5,
            "artifacts_path": "projects/p1/artifacts/ex-1",
            "stdout_truncated": 1,
            "stderr_truncated": 0,
        }


def test_a_pruned_run_and_a_denied_one_are_still_listed(databases: Databases) -> None:
    with databases.open().transaction() as cursor:
        log = store.take_log(cursor, this_process(), 1, "lg-1")
        store.append(cursor, log, [row(0, "decision.denied", "ex-1", **BEGIN)])
        store.close_exec(cursor, Exec("ex-1", 1, 0, 0, 1000, "denied", project_id="p1"))
        assert seen(cursor, "ex-1")["status"] == "denied"
        cursor.execute("UPDATE journal_record SET body = NULL")
        assert seen(cursor, "ex-1") == {
            "exec_id": "ex-1", "project_id": "p1", "status": "denied", "started_at": 1000, "ended_at": 1000,
        }  # fmt: skip


def test_it_has_these_columns_in_this_order(databases: Databases) -> None:
    with databases.open().transaction() as cursor:
        if databases.url is None:
            found = [name for _, name, *_ in cursor.execute("PRAGMA table_info(sandbox_execs)").fetchall()]
        else:
            found = [
                name
                for (name,) in cursor.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_name = 'sandbox_execs' "
                    "ORDER BY ordinal_position"
                ).fetchall()
            ]
    assert found == COLUMNS
