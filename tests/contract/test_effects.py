"""What a record says of a run's effects, against what the run really did, whichever backend built its box."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ringfence
from ringfence.authority.profile import Profile
from ringfence.capability.limits import MIB, Limits
from ringfence.evidence.effects import observed
from ringfence.executors.code import result_of
from ringfence.operation import CodeRun, Language
from ringfence.ports import Job
from ringfence.workspaces.exec_files import read_artifact, read_exec_files, write_exec_files
from ringfence.workspaces.names import original

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


async def effects_of(bench: Bench, code: str, **options: Any) -> dict[str, Any]:
    done = await bench.run(code, **options)
    assert done.stderr == ""
    operation = CodeRun(
        Language.PYTHON, code, files=options.get("files", {}), inputs=options.get("inputs", {}), stdin=b""
    )
    return observed(operation, result_of("ex-1", done.worker, done.ending, done.harvest, Profile()))


async def test_files_written_are_what_changed_in_work_and_artifacts(bench: Bench) -> None:
    code = """
import os
open('touched', 'a').write('x')
os.makedirs('deep/er'); open('deep/er/new', 'w').write('four')
open('/output/a.csv', 'w').write('1,2')
open('/tmp/elsewhere', 'w').write('z')
open('gone', 'w').close(); os.unlink('gone')
"""
    seen = await effects_of(bench, code, files={"touched": b"1", "untouched": b"2"}, inputs={"in.csv": b"3"})
    assert seen["files_written"] == {"paths": ["artifacts/a.csv", "work/deep/er/new", "work/touched"], "complete": True}
    assert seen["files_read"] == {"paths": ["inputs/in.csv", "work/touched", "work/untouched"], "complete": False}
    assert {"kind": "write", "meta": {"path": "work/deep/er/new", "bytes": 4}} in seen["side_effects"]


async def test_what_could_not_be_collected_was_still_written(bench: Bench) -> None:
    code = "import os; os.symlink('/etc/passwd', '/output/link'); open('/output/big', 'wb').truncate(1 << 24)"
    seen = await effects_of(bench, code, artifact_bytes=MIB)
    assert seen["files_written"] == {"paths": ["artifacts/big", "artifacts/link"], "complete": True}
    assert seen["artifacts"] == []
    assert [effect["meta"]["uncollected"] for effect in seen["side_effects"]] == ["artifact_bytes", "symlink"]


async def test_more_artifacts_than_allowed_are_named_and_the_run_is_marked_while_work_is_not_counted(
    bench: Bench,
) -> None:
    code = "open('big', 'wb').write(b'x' * (3 << 20)); open('/output/a', 'wb').write(b'x' * {size})"
    for size, marked in ((1 << 20, None), ((1 << 20) + 1, "artifacts")):
        done = await bench.run(code.format(size=size), artifact_bytes=MIB)
        result = result_of("ex_1", done.worker, done.ending, done.harvest, Profile(Limits(artifact_bytes=MIB)))
        assert (result.success, result.reason) == (True, marked)
        assert result.changes.uncollected == (() if marked is None else (("a", "artifact_bytes"),))


async def test_a_guest_cannot_hide_its_files_behind_directories_it_removes(bench: Bench) -> None:
    code = """
import os
removed = 0
for top in ('/workspace', '/tmp', '/home', '/dev/shm'):
    for directory, directories, files in os.walk(top, topdown=False):
        for path in (os.path.join(directory, name) for name in files + directories):
            try:
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
                removed += 1
            except OSError:
                pass
for number in range(max(1, removed)):
    open(f'/workspace/work/{number}', 'w').close()
"""
    worker = bench.start()
    try:
        await worker.run(Job(Language.PYTHON, code, (), {}, b"", Limits()), None)
        assert worker.left_files()
    finally:
        worker.discard()


async def test_names_made_to_break_a_record_are_harmless_in_it(bench: Bench) -> None:
    code = r"""
import os
for name in (b'a\nb', b'\xff\xfe', b'\x1b[2J', '\u202egpj.exe'.encode(), b'100%', b'\\'):
    open(b'/workspace/work/' + name, 'w').close()
"""
    seen = await effects_of(bench, code)
    assert seen["files_written"]["paths"] == [
        "work/%1B[2J", "work/%5C", "work/%E2%80%AEgpj.exe", "work/%FF%FE", "work/100%25", "work/a%0Ab",
    ]  # fmt: skip
    assert seen["files_written"]["complete"]


async def test_ten_thousand_names_are_cut_and_counted(bench: Bench) -> None:
    code = "for number in range(10_000): open(f'{number:05}', 'w').close()"
    written = (await effects_of(bench, code, inodes=20_000, spec={"inodes": 20_000}))["files_written"]
    assert (len(written["paths"]), written["left_out"], written["complete"]) == (256, 9_744, False)


async def test_a_box_without_a_route_has_no_destinations_and_that_is_all(bench: Bench) -> None:
    seen = await effects_of(bench, "pass")
    assert seen["network"] == {"destinations": [], "complete": True}


BURN = "for _ in range(20_000_000): pass"


def burnt_ms() -> float:
    """Return what it takes here; a guest's own clock may count time that it was not given."""
    began = time.process_time()
    exec(BURN)
    return (time.process_time() - began) * 1000


async def test_memory_cpu_and_processes_are_near_what_was_used(bench: Bench) -> None:
    code = f"""
import os, threading, time
held = bytearray(128 << 20)
child = os.fork()
{BURN}
if child == 0:
    os._exit(0)
os.wait()
threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(20)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
"""
    seen = await effects_of(bench, code)
    assert 128 * MIB < seen["memory_used_bytes"] < 200 * MIB
    assert 1.4 * burnt_ms() < seen["cpu_ms"] < 2000 + 6 * burnt_ms()  # both of them burnt as much
    assert seen["processes"]["complete"] is ("peak" in seen["processes"])
    if seen["processes"]["complete"]:
        assert seen["processes"]["peak"] == 21


async def test_what_is_kept_of_a_run_is_what_the_guest_left_beside_what_is_ours(bench: Bench, tmp_path: Path) -> None:
    code = r"""
import os, sys
print('out'); sys.stderr.write('err')
for name in (b'meta.json', b'stdout.txt/deep', b'a\nb', b'\xff' * 255, b'plots/a.png'):
    os.makedirs(os.path.dirname(b'/output/' + name), exist_ok=True)
    open(b'/output/' + name, 'wb').write(name)
os.symlink('/etc/passwd', '/output/manifest.json')
"""
    done = await bench.run(code, stdout_bytes=2)
    result = result_of("ex_1", done.worker, done.ending, done.harvest, Profile())
    write_exec_files(tmp_path, "p1", "ex_1", result, manifest={"v": 1}, meta={"exec_id": "ex_1"})
    found = read_exec_files(tmp_path, "p1", "ex_1")
    assert found is not None
    left_out = "o\n[… 2 bytes left out …]\n\n".encode()
    assert (found.stdout, found.stderr, found.meta) == (left_out, b"err", {"exec_id": "ex_1"})
    assert found.manifest["stdout"]["truncated"]
    assert found.manifest["uncollected"] == [{"path": "manifest.json", "reason": "symlink"}]
    assert len(found.manifest["artifacts"]) == 5
    for artifact in result.artifacts:
        assert read_artifact(tmp_path, "p1", "ex_1", artifact.path) == original(artifact.path)


@pytest.mark.needs("native")
def test_what_a_run_deleted_of_its_session_is_a_side_effect(tmp_path: Any) -> None:
    def run(code: str) -> dict[str, Any]:
        result = ringfence.run(code, home=tmp_path, session_id="s1", isolation="native")
        assert result.exit_code == 0, result.stderr
        return observed(CodeRun(Language.PYTHON, code, session_id="s1"), result)

    first = run("import os; open('a', 'w').write('1'); os.mkdir('d'); open('d/b', 'w').write('2')")
    assert first["files_written"] == {"paths": ["work/a", "work/d/b"], "complete": True}
    second = run("import os, shutil; os.unlink('a'); shutil.rmtree('d'); open('c', 'w').write('three')")
    assert second["files_written"] == {"paths": ["work/c"], "complete": True}
    assert second["side_effects"] == [
        {"kind": "write", "meta": {"path": "work/c", "bytes": 5}},
        {"kind": "write", "meta": {"path": "work/a", "deleted": True}},
        {"kind": "write", "meta": {"path": "work/d", "deleted": True}},
    ]


async def test_no_run_is_said_to_have_had_the_processes_of_another(bench: Bench) -> None:
    code = """
import sys, threading
done = threading.Event()
threads = [threading.Thread(target=done.wait) for _ in range(int(sys.argv[1]))]
[thread.start() for thread in threads]; done.set(); [thread.join() for thread in threads]
"""
    told = 0
    for others in (0, 9, 0, 3, 0, 12, 12):
        peak = (await bench.run(code, args=(str(others),))).ending.tasks_peak
        assert peak in (None, others + 1)
        told += peak is not None
    first = (await bench.run(code, args=("40",))).ending.tasks_peak
    assert (first, told > 0) in ((41, True), (None, False))  # where the kernel counts, more than ever is always told
