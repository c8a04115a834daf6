"""G21: nothing of one tenant is seen, reached or charged by another, however they name their sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringfence import SandboxManager
from ringfence.authority.caller import Caller
from ringfence.database.address import open_database
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.journal.reader import reading
from ringfence.operation.brokered import FsList, FsRead, TmpAlloc

pytestmark = [pytest.mark.needs("native"), pytest.mark.guarantee(21)]


async def test_two_tenants_with_one_session_name_have_two_workspaces(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path / "home", pool_size=2) as house:
        mine, theirs = (house.acting_for(Caller(tenant), session_id="s") for tenant in ("acme", "other"))
        assert (await mine.execute_shell("echo secret > a.txt")).success
        for somebody in (theirs, house.acting_for(session_id="s")):
            seen = await somebody.execute_shell("ls -A; cat a.txt ../a.txt /workspace/work/a.txt")
            assert "secret" not in seen.stdout
            with pytest.raises(RingfenceError):
                await somebody.perform(FsRead("work/a.txt"))
            assert (await somebody.perform(FsList("work"))).out["entries"] == []
        assert (await mine.execute_shell("cat a.txt")).stdout == "secret\n"
        assert (tmp_path / "home/workspace/tenants/acme/projects/s/work/a.txt").read_text() == "secret\n"
        assert not (tmp_path / "home/workspace/projects/s/work/a.txt").exists()


async def test_a_tenant_cannot_be_spelled_so_that_it_is_another(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path / "home", pool_size=2) as house:
        for session in ("../../acme/projects/s", "acme/s", "tenants/acme/projects/s"):
            with pytest.raises(InvalidRequest):
                await house.acting_for(Caller("other"), session_id=session).execute_code("python", "1")


async def test_temporary_space_of_one_tenant_is_not_found_by_another(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path / "home", pool_size=2) as house:
        mine, theirs = (house.acting_for(Caller(tenant), session_id="s") for tenant in ("acme", "other"))
        space = (await mine.perform(TmpAlloc(1024))).out["path"]
        assert (await mine.perform(FsList(space))).out["entries"] == []
        with pytest.raises(RingfenceError):
            await theirs.perform(FsList(space))


async def test_the_record_names_the_tenant_the_door_knew(tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path / "home", pool_size=2) as house:
        result = await house.acting_for(Caller("acme", "agent-7"), session_id="s").execute_code("python", "print(1)")
        assert result.stdout == "1\n"
        with reading(open_database(tmp_path / "home", None)) as reader:
            found = reader.execution(result.exec_id)
        assert found is not None
        begun = json.loads(found.begin.text or "")
        assert (begun["tenant"], begun["subject_id"]) == ("acme", "agent-7")
