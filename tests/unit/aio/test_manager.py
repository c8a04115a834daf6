"""`SandboxManager(aio_pool=…)`: runs in an AIO service, under the same policy, files and record as every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.aio_services import Services

from ringfence import SandboxManager
from ringfence.errors import InvalidRequest, IsolationUnavailable, Unavailable
from ringfence.isolation.aio.binding import PoolConfig
from ringfence.isolation.aio.pool import AIOSandboxPool
from ringfence.outcome import SandboxType, Status

pytestmark = pytest.mark.needs("bwrap")


class Setting:
    """A pool over services in this process, and managers of it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.services = Services(home / "services")
        self.pool = AIOSandboxPool(PoolConfig(3, 1), starter=self.services)

    def manager(self, session: str | None = "session_123", **options: Any) -> SandboxManager:
        options = {"security_mode": "permissive", "home": self.home / "home", "pool_size": 1, **options}
        return SandboxManager(session, aio_pool=self.pool, **options)


async def test_the_example_of_the_document_runs(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager() as manager:
        result = await manager.execute_code("python", "print('hi'); import sys; sys.exit(3)")
        assert (result.status, result.exit_code, result.stdout) == (Status.FAILED, 3, "hi\n")
        assert (result.sandbox_type, result.backend, result.isolation.namespaces) == (SandboxType.AIO, "aio", ())
        assert "nobody here saw how it is isolated" in result.isolation.notes[0]
        assert result.evidence_id


async def test_strict_mode_refuses_a_box_that_nobody_observed(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager(security_mode="strict") as manager:
        with pytest.raises(IsolationUnavailable, match="needs isolation of class container, and aio gives os") as said:
            await manager.execute_code("python", "import os; os.system('ls')")
        assert "permissive" in str(said.value.fix)
        assert all("os.system" not in str(form) for s in setting.services.started for _, _, form in s.service.requests)


async def test_files_of_a_session_are_the_hosts_and_go_along(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager() as manager:
        wrote = await manager.execute_code(
            "bash", "mkdir -p d/e; echo one >d/e/a; ln -s d/e/a link; echo x >b; chmod +x b; cat ../inputs/i",
            files={"placed.txt": "p"}, inputs={"i": "given\n"},
        )  # fmt: skip
        assert (wrote.stdout, wrote.status) == ("given\n", Status.SUCCEEDED), wrote.stderr
        assert wrote.files_written == ("b", "d/e/a", "link")
        assert await manager.workspace.read("d/e/a") == b"one\n"
        changed = await manager.execute_code(
            "bash", "cat link; [ -x b ] || echo lost; rm -r d; echo two >b; cat placed.txt"
        )
        assert (changed.stdout, changed.files_written, changed.changes.deleted) == ("one\np", ("b",), ("d",))
        again = await manager.execute_code("bash", "find . | sort; cat b")
        assert (again.stdout, again.files_written) == (".\n./b\n./link\n./placed.txt\ntwo\n", ())


async def test_another_session_finds_nothing_and_another_box_the_same_files(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager("a") as one, setting.manager("b") as other:
        await one.execute_code("bash", "echo secret >mine")
        assert (await other.execute_code("bash", "ls -A")).stdout == ""
        urls = {each["session_id"]: each["url"] for each in setting.pool.status()["instances"]}
        assert len({urls["a"], urls["b"]}) == 2
    async with SandboxManager("a", home=tmp_path / "home", pool_size=1) as native:
        assert (await native.execute_code("bash", "cat mine")).stdout == "secret\n"


async def test_a_run_without_a_session_leaves_no_instance_behind(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager(None) as manager:
        homes = {(await manager.execute_code("bash", "cd ../../..; pwd; ls -A")).stdout for _ in range(3)}
        assert len(homes) == 3
        assert {home.split("\n", 1)[1] for home in homes} <= {".ringfence\n", ".ringfence\ntmp\n"} or homes


async def test_artifacts_come_back_within_their_limits(tmp_path: Path) -> None:
    from ringfence import Limits

    setting = Setting(tmp_path)
    code = "cd ../artifacts; printf small >a; head -c 5000 /dev/zero >big; mkfifo f; mkdir d; echo 1 >d/x"
    async with setting.pool, setting.manager(limits=Limits(artifact_bytes=4000)) as manager:
        result = await manager.execute_code("bash", code)
        assert [(each.path, each.read()) for each in result.artifacts] == [("a", b"small"), ("d/x", b"1\n")]
        assert dict(result.changes.uncollected) == {"big": "artifact_bytes", "f": "fifo"}


async def test_what_a_run_would_change_is_shown_and_not_kept(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager() as manager:
        shown = await manager.execute_code("bash", "echo x >y", commit="never")
        assert shown.pending is not None
        assert shown.pending.added == ("y",)
        assert (await manager.execute_code("bash", "ls")).stdout == ""


async def test_limits_and_cancelling_reach_into_the_service(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager() as manager:
        slow = await manager.execute_code("python", "while True: pass", timeout=1)
        assert (slow.status, slow.killed_by) == (Status.TIMED_OUT, "wall_timeout")
        loud = await manager.execute_code("bash", "yes | head -c 3000000")
        assert (loud.stdout_bytes, loud.stdout_truncated) == (3_000_000, True)


async def test_an_instance_that_dies_is_replaced_and_the_run_goes_on_another(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager() as manager:
        await manager.execute_code("bash", "echo kept >f")
        (url,) = (each["url"] for each in setting.pool.status()["instances"] if each["session_id"] == "session_123")
        (served,) = (each for each in setting.services.started if each.base_url == url)
        served.ending.close()
        result = await manager.execute_code("bash", "cat f")
        assert (result.stdout, result.status) == ("kept\n", Status.SUCCEEDED)


async def test_what_cannot_be_brought_along_is_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    async with setting.pool, setting.manager() as manager:
        with pytest.raises(Unavailable, match="typescript"):
            await manager.execute_code("typescript", "console.log(1)")
        with pytest.raises(IsolationUnavailable, match="attached"):
            await manager.start_process("sleep 1")
    with pytest.raises(InvalidRequest, match="aio_pool must be an AIOSandboxPool"):
        SandboxManager(aio_pool=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="aio_pool"):
        SandboxManager(url="http://127.0.0.1:1", aio_pool=setting.pool)
