"""Runs whose changes wait for a word: through the manager, the command and the wire, and what the evidence says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence, said, told
from tests.http_service import serving

from ringfence import SandboxManager
from ringfence.database.address import open_database
from ringfence.errors import InvalidRequest
from ringfence.journal.reader import reading

pytestmark = pytest.mark.needs("native")
READ = "print(open('a').read(), end='')"


async def test_a_run_asks_somebody_decides_and_both_are_on_record(tmp_path: Path) -> None:
    async with SandboxManager("p", home=tmp_path, pool_size=1) as manager:
        await manager.execute_code(code="open('a', 'w').write('one\\n')")
        asked = await manager.execute_code(code="open('a', 'w').write('hunter2\\n'); open('b', 'w')", commit="ask")
        assert asked.success
        assert asked.pending is not None
        assert (asked.pending.added, asked.pending.modified) == (("b",), ("a",))
        assert asked.pending.diff.endswith("@@ -1 +1 @@\n-one\n+hunter2\n--- /dev/null\n+++ b/b\n")
        assert (await manager.execute_code(code=READ)).stdout == "one\n"
        assert await manager.pending() == [asked.pending]
        done = await manager.commit(asked.exec_id)
        assert (done.out["written"], done.out["modified"]) == (2, ["a"])
        assert (await manager.execute_code(code=READ)).stdout == "hunter2\n"
        dropped = await manager.execute_code(code="open('a', 'w').write('three\\n')", commit="ask")
        await manager.discard(dropped.exec_id)
        shown = await manager.execute_code(code="open('a', 'w').write('four\\n')", commit="never")
        assert shown.pending is not None
        assert shown.pending.expires_at_ms is None
        assert await manager.pending() == []
        assert (await manager.execute_code(code=READ)).stdout == "hunter2\n"
    ended = {record["exec_id"]: record for record in _records(tmp_path) if record["type"] == "exec.end"}
    said_of = ended[asked.exec_id]
    assert said_of["pending"] == {"added": 1, "modified": 1, "deleted": 0, "waits": True, "complete": True}
    assert [effect["meta"] for effect in said_of["side_effects"]] == [
        {"path": "work/a", "bytes": 8, "kept": False},
        {"path": "work/b", "bytes": 0, "kept": False},
    ]
    assert ended[shown.exec_id]["pending"]["waits"] is False
    committed = ended[done.exec_id]
    assert committed["files_written"] == {"paths": ["work/b", "work/a"], "complete": True}
    begun = next(r for r in _records(tmp_path) if r["type"] == "exec.begin" and r["exec_id"] == done.exec_id)
    assert begun["op"] == {"kind": "ws_commit", "exec_id": asked.exec_id, "force": False}
    assert begun["capability"] == f"ws.commit:{asked.exec_id}"
    assert "hunter2" not in json.dumps(_records(tmp_path))  # what files hold is in no record


async def test_a_change_that_was_denied_is_on_record(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("policies: {default: {denied_changes: ['.git/**']}}\n")
    async with SandboxManager("p", home=tmp_path, policy_file=tmp_path / "policy.yaml", pool_size=1) as manager:
        result = await manager.execute_code(code="import os; os.mkdir('.git'); open('.git/x', 'w')")
    ended = next(r for r in _records(tmp_path) if r["type"] == "exec.end" and r["exec_id"] == result.exec_id)
    assert (ended["status"], ended["outcome"], ended["reason"]) == ("denied", "denied", "change_denied")
    assert ended["changes_denied"] == {"paths": ["work/.git", "work/.git/x"], "complete": True}
    assert (ended["exit_code"], ended["error_code"]) == (0, "SANDBOX.CAPABILITY_BLOCKED")


def _records(home: Path) -> list[dict[str, Any]]:
    with reading(open_database(home, None)) as reader:
        return [json.loads(place.text or "") for log in reader.logs() for place in reader.records(log.number)]


async def test_a_proposal_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    async with SandboxManager("p", home=tmp_path, pool_size=1) as first:
        asked = await first.execute_code(code="open('a', 'w').write('x')", commit="ask")
    assert not (tmp_path / "workspace/projects/p/work/a").exists()
    async with SandboxManager("p", home=tmp_path, pool_size=0) as second:
        await second.commit(asked.exec_id)
        with pytest.raises(InvalidRequest) as refused:
            await second.commit(asked.exec_id)
        assert refused.value.reason == "not_found"
    assert (tmp_path / "workspace/projects/p/work/a").read_text() == "x"


async def test_two_that_change_the_same_file_are_in_conflict(tmp_path: Path) -> None:
    async with SandboxManager("p", home=tmp_path, pool_size=2) as manager:
        one = await manager.execute_code(code="open('a', 'w').write('1')", commit="ask")
        two = await manager.execute_code(code="open('a', 'w').write('2')", commit="ask")
        await manager.commit(one.exec_id)
        with pytest.raises(InvalidRequest, match="changed since the run began: work/a") as refused:
            await manager.commit(two.exec_id)
        assert (refused.value.reason, refused.value.answer.http_status) == ("conflict", 409)
        await manager.commit(two.exec_id, force=True)
        assert (await manager.execute_code(code=READ)).stdout == "2"


async def test_without_a_project_there_is_nothing_to_decide(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager:
        result = await manager.execute_code(code="open('a', 'w').write('x')", commit="ask")
        assert (result.success, result.pending, result.files_written) == (True, None, ("a",))
        with pytest.raises(InvalidRequest) as refused:
            await manager.commit(result.exec_id)
        assert refused.value.reason == "invalid_session_id"


@pytest.mark.parametrize("commit", ["", "ALWAYS", "yes", True, 1])
async def test_what_is_no_word_for_it_is_refused(tmp_path: Path, commit: object) -> None:
    async with SandboxManager("p", home=tmp_path, pool_size=0) as manager:
        with pytest.raises(InvalidRequest, match="commit must be one of always, ask, never"):
            await manager.execute_code(code="1", commit=commit)  # type: ignore[arg-type]


# --- the command ---


def test_a_dry_run_shows_the_diff_keeps_nothing_and_exits_as_the_program_did(tmp_path: Path) -> None:
    said(tmp_path, "run", "--project", "p", "-c", "open('a', 'w').write('one\\n')")
    program = "open('a', 'w').write('two\\n'); open('\\x1b[2Jb', 'w').write('\\x1b]0;x\\x07\\n'); print('out'); exit(7)"
    done = ringfence(tmp_path, "run", "--project", "p", "--dry-run", "--passthrough", "-c", program)
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "\x1b" not in done.stderr
    assert "A %1B[2Jb\nM a\n" in done.stderr
    assert "-one\n+two\n" in done.stderr
    assert done.stderr.endswith("ringfence: nothing of it was kept\n")
    assert said(tmp_path, "run", "--project", "p", "-c", READ) == "one\n"
    nothing = ringfence(tmp_path, "run", "--project", "p", "--dry-run", "-c", "print(1)")
    assert (nothing.returncode, nothing.stderr) == (0, "ringfence: the run would change nothing\n")


def test_a_dry_run_can_be_kept_and_decided_on_later(tmp_path: Path) -> None:
    first = told(tmp_path, "run", "--project", "p", "--dry-run", "--keep", "--json", "-c", "open('a', 'w').write('1')")
    assert first["pending"]["added"] == ["a"]
    second = ringfence(tmp_path, "run", "--project", "p", "--dry-run", "--keep", "-c", "open('a', 'w').write('2')")
    assert "ringfence: to apply it: ringfence workspace commit p ex_" in second.stderr
    listed = said(tmp_path, "workspace", "pending", "p").splitlines()
    assert listed[0].split("  ")[0] == first["exec_id"]
    assert said(tmp_path, "workspace", "commit", "p", first["exec_id"]) == (
        f"committed {first['exec_id']}: 1 added, 0 modified, 0 deleted\n"
    )
    other = listed[1].split("  ")[0]
    refused = ringfence(tmp_path, "workspace", "commit", "p", other)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "conflict: changed since the run began: work/a. Fix: run it again, or commit with force" in refused.stderr
    assert said(tmp_path, "workspace", "discard", "p", other).startswith(f"discarded {other}")
    assert said(tmp_path, "run", "--project", "p", "-c", READ) == "1"


@pytest.mark.parametrize(
    ("words", "said_so"),
    [
        (("run", "--dry-run", "-c", "1"), "--dry-run is about a project's files, and none is named"),
        (("run", "--project", "p", "--keep", "-c", "1"), "--keep is for a dry run"),
        (("workspace", "commit", "p"), "commit needs an execution"),
        (("workspace", "commit", "p", "ex_1"), "there is no such proposal"),
        (("workspace", "discard", "p", "../x"), "there is no such proposal"),
        (("workspace", "discard", "p", "ex_1", "--force"), "--force is for commit"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path, words: tuple[str, ...], said_so: str) -> None:
    said(tmp_path, "run", "--project", "p", "-c", "1")
    done = ringfence(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert said_so in done.stderr


# --- the wire ---


def test_over_the_wire_it_is_the_same_and_no_other_tenant_can_tell(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        keys = {tenant: service.make_key("agent", tenant) for tenant in ("acme", "other")}

        def run(code: str, commit: str | None = None, tenant: str = "acme") -> dict[str, object]:
            overrides = {} if commit is None else {"policy_overrides": {"commit": commit}}
            body = {"project_id": "p", "exec": {"kind": "python", "code": code}, **overrides}
            answer = service.ask("POST", "/sandbox/execs", body, key=keys[tenant])
            assert answer.status == 201, answer.body
            found: dict[str, object] = answer.json
            return found

        def decide(action: str, exec_id: object, tenant: str = "acme", body: object = None) -> tuple[int, object]:
            answer = service.ask("POST", f"/sandbox/execs/{exec_id}/{action}", body, key=keys[tenant])
            problem = {**answer.json, "instance": None}
            return answer.status, problem.get("reason") if answer.status != 200 else answer.json["out"]["added"]

        asked = run("open('a', 'w').write('x')", "ask")
        assert asked["pending"]["added"] == ["a"]  # type: ignore[index]
        assert run("import os; print(os.listdir('.'))")["stdout"] == "[]\n"
        for exec_id in (asked["exec_id"], "ex_01a1e386bfd7e908517520b1b03b84ff", "..%2f..", "%00"):
            assert decide("commit", exec_id, "other")[0] == 404
            assert decide("discard", exec_id, "other")[0] == 404
        assert decide("commit", asked["exec_id"], body={"force": "yes"})[0] == 422
        assert decide("commit", asked["exec_id"]) == (200, ["a"])
        assert decide("commit", asked["exec_id"]) == (404, "not_found")
        assert run("print(open('a').read())")["stdout"] == "x\n"
        again = run("open('a', 'w').write('y')", "ask")
        run("open('a', 'w').write('z')")
        assert decide("commit", again["exec_id"]) == (409, "conflict")
        assert decide("commit", again["exec_id"], body={"force": True})[0] == 200
        plain = run("open('a', 'w').write('w')")
        assert decide("discard", plain["exec_id"]) == (404, "not_found")
        refused = service.ask(
            "POST",
            "/sandbox/execs",
            {"project_id": "p", "exec": {"kind": "python", "code": "1"}, "policy_overrides": {"commit": "maybe"}},
            key=keys["acme"],
        )
        assert refused.status == 422


# --- how much one run may change ---

FIVE = "[open(f'n{n}', 'w').write('x') for n in range(5)]"


def test_a_rule_about_how_much_a_run_changes_is_linted_explained_and_told_by_a_dry_run(tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("policies: {default: {max_changed_paths: 4, max_changed_bytes: 1kb}}\n")
    under = ("--policy", str(policy))
    said(tmp_path, "policy", "lint", str(policy))
    explained = said(tmp_path, "policy", "explain", "--tool", "code_run", *under)
    (line,) = [line for line in explained.splitlines() if line.startswith("changed_paths")]
    assert line.split()[1:5] == ["4194304", "4194304", "4", "—"]
    for words in (("--dry-run",), ("--dry-run", "--keep"), ()):
        done = ringfence(tmp_path, "run", "--project", "p", *under, *words, "-c", FIVE)
        assert (done.returncode, done.stdout) == (3, "")
        assert "SANDBOX.CAPABILITY_BLOCKED changes_too_large: " in done.stderr
        assert "it changes 5 paths, where 4 are allowed" in done.stderr
        assert "would change nothing" not in done.stderr
    assert said(tmp_path, "workspace", "pending", "p") == ""
    assert said(tmp_path, "run", "--project", "p", "-c", "import os; print(os.listdir('.'))") == "[]\n"
    large = told(tmp_path, "run", "--project", "p", *under, "-c", "open('n', 'w').write('x' * 2000)", code=3)
    assert large["error"] == "it changes 2000 bytes, where 1024 are allowed"
    shown = told(tmp_path, "evidence", "show", large["exec_id"])
    assert '"changes_too_large": {"bytes": 2000, "paths": 1}' in json.dumps(shown, sort_keys=True)


def test_over_the_wire_a_run_can_be_held_to_less_and_a_commit_is_held_to_the_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {max_changed_paths: 5}}\n")
    with serving(tmp_path / "home", "--policy", str(policy)) as service:

        def run(**overrides: object) -> Any:
            body = {"project_id": "p", "exec": {"kind": "python", "code": FIVE}, "policy_overrides": overrides}
            return service.ask("POST", "/sandbox/execs", body)

        held = run(max_changed_paths=4, commit="ask").json
        assert (held["status"], held["reason"], held["pending"]) == ("denied", "changes_too_large", None)
        assert held["error"] == "it changes 5 paths, where 4 are allowed"
        more = run(max_changed_paths=6)
        assert (more.status, more.reason) == (403, "limit_exceeds_ceiling")
        asked = run(commit="ask").json
        assert len(asked["pending"]["added"]) == 5
        committed = service.ask("POST", f"/sandbox/execs/{asked['exec_id']}/commit")
        assert (committed.status, committed.json["out"]["written"]) == (200, 5)
