"""A session's files through the manager: every method one operation, judged, written down, and its own tenant's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ringfence import SandboxManager
from ringfence.authority.caller import Caller
from ringfence.database.address import open_database
from ringfence.errors import Denied, InvalidRequest, QuotaExceeded
from ringfence.journal.reader import reading
from ringfence.operation.form import from_json, to_json
from ringfence.operation.workspace import WsDiff, WsReset, WsRestore, WsSnapshot, WsSnapshotDelete, WsSnapshots

pytestmark = pytest.mark.needs("native")


def records(home: Path, prefix: str) -> list[dict[str, object]]:
    with reading(open_database(home, None)) as reader:
        found = [
            json.loads(record.text) for log in reader.logs() for record in reader.records(log.number) if record.text
        ]
    return [members for members in found if str(members["type"]).startswith(prefix)]


async def test_snapshot_damage_restore_compare(tmp_path: Path) -> None:
    async with SandboxManager("s", home=tmp_path, pool_size=2) as manager:
        files = manager.workspace
        assert (
            await manager.execute_shell("mkdir d; echo one > a; seq 5000 > d/b; ln -s a link; chmod 700 d/b")
        ).success
        hashes = "find . -type f -exec sha256sum {} + | sort; stat -c '%n %a %Y' a d d/b; readlink link"
        before = (await manager.execute_shell(hashes)).stdout
        kept = await files.snapshot("before the damage")
        assert (kept["files"], kept["label"]) == (2, "before the damage")
        assert (await manager.execute_shell("rm -rf d link; echo two > a; echo new > c")).success
        changed = await files.diff(kept["snapshot_id"])
        assert (changed["added"], changed["modified"], changed["deleted"]) == (1, 1, 3)
        assert "-one\n+two\n" in changed["patch"]
        await files.restore(kept["snapshot_id"])
        assert (await manager.execute_shell(hashes)).stdout == before
        assert (await files.diff(kept["snapshot_id"]))["changes"] == []
        assert [info["snapshot_id"] for info in await files.snapshots()] == [kept["snapshot_id"]]
        reset = await files.reset(snapshot_before=True)
        assert (await manager.execute_shell("ls -A | wc -l")).stdout == "0\n"
        await files.restore(reset["snapshot_before"])
        assert (await manager.execute_shell(hashes)).stdout == before
        await files.delete_snapshot(kept["snapshot_id"])
        assert [info["label"] for info in await files.snapshots()] == ["before reset"]
    assert [found["type"] for found in records(tmp_path, "workspace.")] == [
        "workspace.snapshot",
        "workspace.restored",
        "workspace.reset",
        "workspace.restored",
        "workspace.snapshot_deleted",
    ]
    first = records(tmp_path, "workspace.")[0]
    assert (first["session_id"], first["tenant"], first["files"]) == ("s", "local", 2)
    assert len(records(tmp_path, "exec.begin")) == len(records(tmp_path, "exec.end"))


async def test_files_through_the_workspace(tmp_path: Path) -> None:
    async with SandboxManager("s", home=tmp_path, pool_size=1) as manager:
        files = manager.workspace
        await files.write("d/a.txt", "text")
        await files.mkdir("e")
        assert [entry["name"] for entry in await files.list()] == ["d", "e"]
        assert await files.read("d/a.txt") == b"text"
        assert (await files.stat("/workspace/work/d/a.txt"))["size"] == 4
        await files.delete("d/a.txt")
        with pytest.raises(InvalidRequest):
            await files.read("d/a.txt")


async def test_without_a_session_there_is_no_workspace(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as manager:
        with pytest.raises(InvalidRequest) as refused:
            _ = manager.workspace
        assert refused.value.reason == "invalid_session_id"
        with pytest.raises(InvalidRequest):
            await manager.perform(WsSnapshot())


async def test_a_snapshot_of_one_tenant_is_unknown_to_another(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, pool_size=1) as house:
        mine, theirs = (house.acting_for(Caller(tenant), session_id="s").workspace for tenant in ("acme", "other"))
        await mine.write("a", "secret")
        kept = (await mine.snapshot())["snapshot_id"]
        await theirs.snapshot()
        assert len(await theirs.snapshots()) == 1
        answers = []
        for name in (kept, "snap_" + "0" * 32):
            for act in (theirs.restore, theirs.delete_snapshot, theirs.diff):
                with pytest.raises(InvalidRequest) as refused:
                    await act(name)
                answers.append((str(refused.value), refused.value.code, refused.value.reason))
        assert len(set(answers)) == 1
        assert await mine.read("a") == b"secret"


async def test_a_policy_that_denies_writing_denies_going_back(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  tools:\n    file_write:\n      allowed_paths: [/workspace/work/out/**]\n")
    async with SandboxManager("s", home=tmp_path / "home", pool_size=1, policy_file=policy) as manager:
        await manager.workspace.write("out/a", "x")
        with pytest.raises(Denied):
            await manager.workspace.snapshot()
        with pytest.raises(Denied):
            await manager.workspace.restore("snap_" + "0" * 32)
        assert await manager.workspace.snapshots() == []


async def test_what_a_policy_hides_is_not_shown_by_a_diff(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies:\n  tools:\n    file_read:\n      denied_paths: [/workspace/**/*.key]\n")
    async with SandboxManager("s", home=tmp_path / "home", pool_size=1, policy_file=policy) as manager:
        await manager.workspace.write("a.key", "very secret\n")
        await manager.workspace.write("a.txt", "plain\n")
        with pytest.raises(Denied):
            await manager.workspace.read("a.key")
        found = await manager.workspace.diff()
        assert {change["path"]: change["text"] for change in found["changes"]} == {"a.key": "denied", "a.txt": "shown"}
        assert "secret" not in found["patch"]


async def test_two_runs_at_once_both_keep_what_they_wrote(tmp_path: Path) -> None:
    async with SandboxManager("s", home=tmp_path, pool_size=4) as manager:
        both = "touch started.$1; echo $1 > own.$1; for i in $(seq 20000); do echo $1; done > shared; sleep 0.2"
        runs = [asyncio.create_task(manager.execute_shell(both.replace("$1", str(number)))) for number in range(4)]
        await manager.workspace.snapshot("in between")
        assert all([(await run).success for run in runs])
        names = [entry["name"] for entry in await manager.workspace.list()]
        assert {f"own.{number}" for number in range(4)} <= set(names)
        shared = (await manager.workspace.read("shared")).split()
        assert (len(shared), len(set(shared))) == (20000, 1)  # of one run, whole


async def test_a_run_that_was_under_way_during_a_restore_keeps_what_it_wrote(tmp_path: Path) -> None:
    async with SandboxManager("s", home=tmp_path, pool_size=2) as manager:
        await manager.workspace.write("a", "old")
        kept = (await manager.workspace.snapshot())["snapshot_id"]
        await manager.workspace.write("a", "new")
        started = asyncio.Event()
        run = asyncio.create_task(
            manager.execute_code(
                "python",
                "print('started', flush=True); import time; time.sleep(0.5); open('late', 'w').write('kept')",
                on_output=lambda *_: started.set(),
            )
        )
        await started.wait()
        await manager.workspace.restore(kept)
        assert (await run).success
        assert (await manager.execute_shell("cat a late")).stdout == "oldkept"


async def test_a_project_has_no_more_snapshots_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.workspaces.snapshots.MOST_SNAPSHOTS", 1)
    async with SandboxManager("s", home=tmp_path, pool_size=1) as manager:
        await manager.workspace.snapshot()
        with pytest.raises(QuotaExceeded) as refused:
            await manager.workspace.reset(snapshot_before=True)
        assert refused.value.reason == "snapshots"


@pytest.mark.parametrize(
    "operation",
    [
        WsSnapshot("label"),
        WsSnapshots(),
        WsRestore("snap_" + "1" * 32, snapshot_before=True),
        WsReset(),
        WsDiff(),
        WsDiff("snap_" + "1" * 32),
        WsSnapshotDelete("snap_" + "1" * 32),
    ],
)
def test_every_operation_has_a_form_that_is_read_back(operation: object) -> None:
    assert from_json(json.loads(json.dumps(to_json(operation)))) == operation  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "form",
    [
        {"op": "ws_restore"},
        {"op": "ws_restore", "snapshot_id": "../../x"},
        {"op": "ws_snapshot", "label": "\x1b"},
        {"op": "ws_reset", "snapshot_before": 1},
        {"op": "ws_diff", "since": ""},
        {"op": "ws_snapshots", "all": True},
    ],
)
def test_a_form_that_is_none_is_refused(form: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        from_json(form)


async def test_what_nobody_may_change_is_not_changed_by_going_back_or_starting_over(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {denied_changes: ['.git/**']}}\n")
    home = tmp_path / "home"
    async with SandboxManager("s", home=home, pool_size=1) as owner:
        await owner.workspace.write(".git/hooks/pre-commit", "of the agent")
        hostile = (await owner.workspace.snapshot("hostile"))["snapshot_id"]
        await owner.workspace.write(".git/hooks/pre-commit", "of the owner")
        await owner.workspace.write("a", "1")
        harmless = (await owner.workspace.snapshot("harmless"))["snapshot_id"]
        await owner.workspace.write("a", "2")
    async with SandboxManager("s", home=home, pool_size=1, policy_file=policy) as agent:
        with pytest.raises(Denied) as refused:
            await agent.workspace.restore(hostile)
        assert (refused.value.reason, "work/.git/hooks/pre-commit" in str(refused.value)) == ("change_denied", True)
        with pytest.raises(Denied) as refused:
            await agent.workspace.reset(snapshot_before=True)
        assert refused.value.reason == "change_denied"
        assert await agent.workspace.read(".git/hooks/pre-commit") == b"of the owner"
        await agent.workspace.restore(harmless)
        assert await agent.workspace.read("a") == b"1"


async def test_a_file_that_may_not_be_written_or_deleted_is_not_so_by_going_back(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {default: {denied_paths: ['**/*.key']}}\n")
    home = tmp_path / "home"
    async with SandboxManager("s", home=home, pool_size=1) as owner:
        await owner.workspace.write("d/a.key", "old")
        old = (await owner.workspace.snapshot())["snapshot_id"]
        await owner.workspace.write("d/a.key", "new")
        same = (await owner.workspace.snapshot())["snapshot_id"]
    async with SandboxManager("s", home=home, pool_size=1, policy_file=policy) as agent:
        with pytest.raises(Denied):
            await agent.workspace.delete("d/a.key")
        with pytest.raises(Denied) as refused:
            await agent.workspace.restore(old)
        assert refused.value.reason == "change_denied"
        with pytest.raises(Denied):
            await agent.workspace.reset()
        await agent.workspace.write("b", "1")
        await agent.workspace.restore(same)
    assert (home / "workspace/projects/s/work/d/a.key").read_text() == "new"
