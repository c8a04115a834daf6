"""gVisor through the public doors: named in result and evidence, with the files of a session, and by policy alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.command_line import told

from ringfence import SandboxManager
from ringfence.errors import IsolationUnavailable
from ringfence.facade import ExecutionRequest
from ringfence.isolation.gvisor import runsc

pytestmark = [pytest.mark.needs("gvisor"), pytest.mark.usefixtures("gvisor_image")]


def test_the_command_and_its_evidence_name_gvisor_and_what_the_box_was_made_from(tmp_path: Path) -> None:
    answer = told(tmp_path, "run", "--isolation", "gvisor", "-c", "import os; print(os.uname().release)")
    assert answer["stdout"].strip() not in ("", os.uname().release)
    assert (answer["sandbox_type"], answer["backend"]) == ("gvisor", "gvisor")
    records = [each["record"] for each in told(tmp_path, "evidence", "show", answer["exec_id"])["records"]]
    end = next(record for record in records if record["type"] == "exec.end")
    assert end["image_digest"] == answer["isolation"]["container"]["image_digest"]
    assert end["image_digest"].startswith("sha256:")
    assert {"/runsc", "--network=none"} <= set(end["argv"])
    assert {mount["source"].split("/")[1] for mount in end["mounts"]} == {"box"}  # nothing of the host's
    assert "gvisor" in str(end)


async def test_a_session_keeps_its_files_from_one_box_to_the_next(tmp_path: Path) -> None:
    async with SandboxManager("kept", home=tmp_path, isolation="gvisor", pool_size=1) as manager:
        first = await manager.execute(ExecutionRequest("open('note', 'w').write('one'); open('gone', 'w').close()"))
        assert first.success, first.stderr
        second = await manager.execute(
            ExecutionRequest("import os\nprint(open('note').read()); os.unlink('gone'); open('note', 'a').write('two')")
        )
        assert second.stdout == "one\n", second.stderr
        third = await manager.execute(ExecutionRequest("import os\nprint(open('note').read(), os.listdir('.'))"))
        assert third.stdout == "onetwo ['note']\n"


async def test_a_machine_without_runsc_refuses_with_the_fix_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runsc, "_SEARCHED", "/nowhere")
    async with SandboxManager(home=tmp_path, isolation="gvisor", pool_size=0) as manager:
        with pytest.raises(IsolationUnavailable, match="runsc is not installed") as refusal:
            await manager.execute(ExecutionRequest("print(1)"))
    assert "apt-get install runsc" in str(refusal.value.fix)
