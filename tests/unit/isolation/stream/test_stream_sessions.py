"""A session's files through a byte stream: what its runs leave is what they would have left on a native box."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from tests.stream_box import BoxBackend

from ringfence.authority.levels import Commit
from ringfence.authority.profile import Isolation
from ringfence.capability.denials import Denials
from ringfence.capability.limits import MIB, Limits
from ringfence.operation import Language
from ringfence.ports import EVERYTHING, Backend, Harvest, Job, Keeping, WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings
from ringfence.workspaces.session import SessionWorkspace

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.timeout(60)]


@dataclass
class Runs:
    """Runs of sessions on one backend."""

    backend: Backend
    home: Path

    def run(
        self,
        code: str,
        session: str = "s1",
        *,
        files: dict[str, bytes] | None = None,
        keeping: Keeping = EVERYTHING,
        limits: Limits = Limits(),
    ) -> Harvest:
        """Run `code` in the session, and say what came of its files."""
        worker = self.backend.start(WorkerSpec(session_id=session, disk_bytes=limits.disk_bytes, inodes=limits.inodes))
        try:
            assert worker.is_fresh()
            worker.place(files or {}, {})
            ending = asyncio.run(worker.run(Job(Language.PYTHON, code, (), {}, b"", limits), None))
            assert (ending.exit_code, ending.stderr) == (0, b""), ending.stderr.decode()
            return worker.harvest(limits, keeping) if worker.left_files() else Harvest()
        finally:
            worker.discard()

    def tree(self, session: str = "s1") -> dict[str, tuple[int, bytes]]:
        """Return the session's work directory: kind and permissions, and content."""
        with SessionWorkspace.create(self.home, session) as workspace:
            root = f"/proc/self/fd/{workspace.work_fd}"
            found = {}
            for directory, directories, files in os.walk(root):
                for name in directories + files:
                    path = os.path.join(directory, name)
                    mode = os.lstat(path).st_mode
                    content = b""
                    if stat.S_ISLNK(mode):
                        content = os.fsencode(os.readlink(path))
                    elif stat.S_ISREG(mode) and os.access(path, os.R_OK):
                        content = Path(path).read_bytes()
                    found[os.path.relpath(path, root)] = mode, content
            return found


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    home = tmp_path_factory.mktemp("stream")
    return Runs(BoxBackend(home), home)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    home = tmp_path_factory.mktemp("native")
    backend = make_backend(Settings(home=home, isolation=Isolation.NATIVE))
    yield Runs(backend, home)
    backend.close()


def test_the_next_run_finds_what_the_last_one_left(boxes: Runs) -> None:
    boxes.run("import os; os.makedirs('d/e'); open('d/e/f', 'w').write('one'); os.symlink('d/e/f', 'link')", "next")
    found = boxes.run("assert open('link').read() == 'one'; open('d/e/f', 'a').write(' two')", "next")
    assert found.files_written == ("d/e/f",)
    assert found.changes.kept
    assert boxes.tree("next")["d/e/f"][1] == b"one two"


def test_what_a_run_deletes_is_gone_and_named_once(boxes: Runs) -> None:
    boxes.run("import os; os.makedirs('d/e'); [open(n, 'w') for n in ('d/e/f', 'd/g', 'a', 'b')]", "gone")
    found = boxes.run("import os, shutil; shutil.rmtree('d'); os.unlink('a')", "gone")
    assert (found.changes.deleted, found.files_written) == (("a", "d"), ())
    assert set(boxes.tree("gone")) == {"b"}


def test_what_is_not_touched_is_not_sent_and_not_written(boxes: Runs) -> None:
    boxes.run("open('big', 'wb').write(bytes(1 << 20)); open('small', 'w').write('1')", "untouched")
    found = boxes.run("open('small').read(); open('/output/a', 'w').write('artifact')", "untouched")
    assert (found.files_written, found.changes.deleted, found.changed) == ((), (), False)
    assert [artifact.content for artifact in found.artifacts] == [b"artifact"]


def test_placed_files_stay_with_the_session_and_count_as_written_only_when_touched(boxes: Runs, native: Runs) -> None:
    for runs in (boxes, native):
        runs.run("import os; os.mkdir('d'); open('d/x', 'w').write('old')", "placed")
        found = runs.run("open('mine', 'a').write('!')", "placed", files={"mine": b"1", "other": b"2", "d/x": b"new"})
        assert found.files_written == ("mine",)
        assert {name: content for name, (_, content) in runs.tree("placed").items() if content} == {
            "mine": b"1!",
            "other": b"2",
            "d/x": b"new",
        }


def test_a_worker_of_an_older_generation_is_not_fresh(boxes: Runs) -> None:
    waiting = boxes.backend.start(WorkerSpec(session_id="fresh"))
    try:
        assert waiting.is_fresh()
        boxes.run("open('a', 'w').close()", "fresh")
        assert not waiting.is_fresh()
    finally:
        waiting.discard()


def test_a_session_that_would_outgrow_its_quota_stays_as_it_was(boxes: Runs) -> None:
    limits = replace(Limits(), disk_bytes=2 * MIB)
    boxes.run("open('first', 'wb').write(bytes(1 << 20))", "quota", limits=limits)
    before = boxes.tree("quota")
    # a hole is no blocks to the guest's file system, and all of its length to the session
    found = boxes.run("open('hole', 'wb').truncate(3 << 20)", "quota", limits=limits)
    assert not found.changes.kept
    assert any("quota" in note for note in found.notes)
    assert boxes.tree("quota") == before


def test_changes_wait_for_consent_or_are_refused_as_on_native(boxes: Runs, native: Runs) -> None:
    for runs in (boxes, native):
        runs.run("open('a', 'w').write('1'); open('b', 'w').write('2')", "asked")
        before = runs.tree("asked")
        code = "import os; open('a', 'w').write('9'); os.unlink('b'); open('c', 'w').write('3')"
        asked = runs.run(code, "asked", keeping=Keeping(exec_id="ex_1", commit=Commit.ASK))
        assert asked.pending is not None
        assert (asked.pending.added, asked.pending.modified, asked.pending.deleted) == (("c",), ("a",), ("b",))
        denied = runs.run(code, "asked", keeping=Keeping(denials=Denials(changes=frozenset({"a"}))))
        assert (denied.changes.kept, denied.changes.denied) == (False, ("a",))
        assert runs.tree("asked") == before


def test_special_files_are_dropped_and_named_as_on_native(boxes: Runs, native: Runs) -> None:
    code = "import os, socket; os.mkfifo('f'); socket.socket(socket.AF_UNIX).bind('s'); open('a', 'w').close()"
    told = [runs.run(code, "special") for runs in (boxes, native)]
    assert told[0].notes == told[1].notes
    assert boxes.tree("special") == native.tree("special")


NAMES = st.sampled_from(["a", "b", "d", "d/x", "d/y", "d/e", "d/e/z", "n\n", "\u202e"])
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.sampled_from(["", "1", "two" * 100])),
    st.tuples(st.sampled_from(["remove", "mkdir", "fifo"]), NAMES, st.just("")),
    st.tuples(st.sampled_from(["rename", "symlink", "link"]), NAMES, NAMES),
    st.tuples(st.just("chmod"), NAMES, st.sampled_from(["0o600", "0o755", "0o444", "0o000"])),
)
DO = """
import os, shutil
def do(what, name, more):
    if what == 'write': open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK), 'w').write(more)
    elif what == 'remove': shutil.rmtree(name) if os.path.isdir(name) and not os.path.islink(name) else os.unlink(name)
    elif what == 'mkdir': os.mkdir(name)
    elif what == 'fifo': os.mkfifo(name)
    elif what == 'rename' and not os.path.isdir(name): os.rename(name, more)  # an overlay cannot, of directories
    elif what == 'symlink': os.symlink(name, more)
    elif what == 'link': os.link(name, more)
    elif what == 'chmod': os.chmod(name, int(more, 8))
for step in {steps!r}:
    try: do(*step)
    except OSError: pass
"""
_number = iter(range(1 << 30))


@pytest.mark.needs("native")
@settings(
    max_examples=6,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example([[("write", "a", ""), ("chmod", "a", "0o000"), ("link", "a", "n\n")]])
@given(st.lists(st.lists(STEPS, min_size=1, max_size=8), min_size=1, max_size=3))
def test_whatever_runs_do_a_session_is_the_same_as_on_native(
    boxes: Runs, native: Runs, runs: list[list[tuple[str, str, str]]]
) -> None:
    session = f"law-{next(_number)}"
    for steps in runs:
        code = DO.replace("{steps!r}", repr(steps))
        told = [each.run(code, session) for each in (boxes, native)]
        assert boxes.tree(session) == native.tree(session)
        assert told[0].changes.kept == told[1].changes.kept
