"""Attack the host when it reads what a guest left: links, pipes that block, holes, depth, numbers and names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.security.conftest import Run

from ringfence.capability.limits import MIB, Limits

pytestmark = pytest.mark.guarantee(11)


def test_only_regular_files_are_collected_and_no_link_is_followed(box: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    program = f"""
import os, socket
os.chdir('/workspace/artifacts')
open('fine', 'w').write('fine')
os.symlink({str(tmp_path / "secret")!r}, 'link')
os.symlink('/etc/shadow', 'shadow')
os.symlink({str(tmp_path)!r}, 'directory')
os.symlink('/proc/self/root', 'root')
os.symlink('loop', 'loop')
os.mkfifo('fifo')
socket.socket(socket.AF_UNIX).bind('socket')
os.link('fine', 'second name')
os.mkdir('closed', 0)
open('unreadable', 'w').write('still ours')
os.chmod('unreadable', 0)
"""
    result = box(program)
    assert result.success, result.stderr
    assert {each.path: each.read() for each in result.artifacts} == {
        "fine": b"fine",
        "second name": b"fine",
        "unreadable": b"still ours",
    }


def test_hostile_names_are_harmless(box: Run) -> None:
    program = r"""
import os
os.chdir(b'/workspace/artifacts')
for name in (b'\x1b[2J', b'a\nb', b'\xff\xfe', b'..%2f..', b'-rf', '\u202etxt.exe'.encode(), b' ', b'x' * 255):
    open(name, 'w').write('x')
"""
    paths = [each.path for each in box(program).artifacts]
    assert len(paths) == 8
    assert all(path.isprintable() and "/" not in path for path in paths)


def test_count_size_and_depth_are_capped_and_said(box: Run) -> None:
    program = """
import os
os.chdir('/workspace/artifacts')
for n in range(300):
    open(f'{n}', 'w').write('x' * 100)
open('hole', 'wb').truncate(64 << 20)
deep = '.'
for n in range(40):
    deep += '/d'
    os.mkdir(deep)
    open(deep + '/f', 'w').write('x')
"""
    limits = Limits(artifact_count=50, artifact_bytes=2 * MIB, artifact_depth=8)
    result = box(program, limits=limits)
    assert result.success, result.stderr
    assert len(result.artifacts) <= 50
    assert sum(len(each.read()) for each in result.artifacts) <= 2 * MIB
    assert max(each.path.count("/") for each in result.artifacts) <= 8
    assert result.notes


def test_what_lies_too_deep_to_be_looked_at_is_not_passed_over_in_silence(box: Run) -> None:
    result = box(
        "import os\nos.makedirs('/workspace/artifacts/a/b/c')\nopen('/workspace/artifacts/a/b/c/f', 'w').close()",
        limits=Limits(artifact_depth=3),
    )
    assert (result.artifacts, any("deep" in note for note in result.notes)) == ((), True)


def test_what_a_guest_swaps_while_it_dies_is_not_read_from_elsewhere(box: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("SECRET")
    program = f"""
import os, time
os.chdir('/workspace/artifacts')
os.mkdir('d'); open('d/x', 'w').write('own')
if os.fork() == 0:
    while True:
        os.rename('d', 'e'); os.symlink({str(tmp_path)!r}, 'd'); os.unlink('d'); os.rename('e', 'd')
time.sleep(0.05)
"""
    for _ in range(5):
        assert {each.read() for each in box(program).artifacts} <= {b"own"}


@pytest.mark.parametrize("closed", ["/workspace", "/workspace/work", "/workspace/artifacts"])
@pytest.mark.parametrize("mode", [0, 0o200, 0o600])
def test_a_guest_that_closes_its_own_directories_hides_nothing_and_breaks_nothing(
    box: Run, closed: str, mode: int
) -> None:
    program = f"""
import os
open('/workspace/work/kept', 'w').write('work')
open('/workspace/artifacts/kept', 'w').write('artifacts')
try:
    os.chmod({closed!r}, {mode})
except OSError:
    pass
"""
    result = box(program)
    assert result.success, result.stderr
    assert {each.path: each.read() for each in result.artifacts} == {"kept": b"artifacts"}
    assert result.files_written == ("kept",)
