"""gVisor through the public doors: named in result and evidence, with the files of a session, and by policy alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command_line import told

from ringfence import SandboxManager
from ringfence.errors import IsolationUnavailable
from ringfence.facade import ExecutionRequest
from ringfence.images import archive as archives
from ringfence.images.recipe import Recipe
from ringfence.isolation.gvisor import runsc
from ringfence.isolation.gvisor.rootfs import unpack, unpacked

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


class Images:
    """A cache of images of the test's own, on the file system of the real one."""

    def __init__(self, cache: Path, made_from: Path) -> None:
        self.cache, self._made_from = cache, made_from
        self.known: dict[str, str] = {}

    def build(self, name: str) -> None:
        """Put another image there, as `ringfence image build` does; one file of it says which of them it is."""
        aside = self.cache / "aside"
        aside.mkdir()
        with tarfile.open(aside / "draft.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        number = len(self.known)
        kept = archives.keep(aside / "draft.tar", Recipe(), f"{number}" * 64, architecture="any", built_at=number)
        rootfs = unpack(kept)
        shutil.rmtree(rootfs.path)
        subprocess.run(["cp", "-al", self._made_from, rootfs.path], check=True)
        (rootfs.path / "which").write_text(name)
        for path in (rootfs.path, kept.path, kept.path.with_suffix(".json")):
            path.rename(self.cache / path.name)
        aside.rmdir()
        self.known[rootfs.digest] = name


@pytest.fixture
def images(gvisor_image: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Images]:
    made_from = unpacked(archives.default_cache()).path
    with tempfile.TemporaryDirectory(prefix=".tests-", dir=archives.default_cache().parent) as directory:
        monkeypatch.setenv("XDG_CACHE_HOME", directory)
        archives.default_cache().mkdir(mode=0o700, parents=True)
        yield Images(archives.default_cache(), made_from)


async def test_a_running_application_makes_boxes_from_the_image_built_last_and_each_names_its_own(
    tmp_path: Path, images: Images
) -> None:
    images.build("first")
    seen = []
    async with SandboxManager(home=tmp_path, isolation="gvisor", pool_size=1) as manager:
        for number in range(4):
            if number == 1:
                await asyncio.to_thread(images.build, "second")
            result = await manager.execute(ExecutionRequest("print(open('/which').read(), end='')"))
            assert result.isolation.container is not None
            seen.append(result.stdout)
            assert images.known[result.isolation.container.image_digest] == result.stdout  # also of one parked before
            (end,) = (
                each["record"]
                for each in told(tmp_path, "evidence", "show", result.exec_id)["records"]
                if each["record"]["type"] == "exec.end"
            )
            assert end["image_digest"] == result.isolation.container.image_digest
    assert (seen[0], seen[-1]) == ("first", "second")
