"""What goes into a box and what comes out of it, whichever backend built it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from ringfence.capability.limits import MIB

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


async def test_files_lie_in_the_working_directory_and_belong_to_the_guest(bench: Bench) -> None:
    code = """
import os
print(open('a.txt').read(), open('deep/er/b.bin', 'rb').read())
open('a.txt', 'a').write('!'); os.rename('deep/er/b.bin', 'deep/c.bin'); os.rmdir('deep/er')
print(open('a.txt').read(), os.stat('a.txt').st_uid)
"""
    done = await bench.run(code, files={"a.txt": b"text", "deep/er/b.bin": b"\0\xff"})
    assert (done.stdout, done.stderr) == ("text b'\\x00\\xff'\ntext! 1000\n", "")


async def test_inputs_can_be_read_and_nothing_else(bench: Bench) -> None:
    code = """
import os
print(open('/workspace/inputs/data/a.csv').read())
for attempt in (
    lambda: open('/workspace/inputs/data/a.csv', 'w'),
    lambda: open('/workspace/inputs/new', 'w'),
    lambda: os.unlink('/workspace/inputs/data/a.csv'),
    lambda: os.mkdir('/workspace/inputs/d'),
    lambda: os.rename('/workspace/inputs', '/workspace/work/inputs'),
):
    try:
        attempt()
        print('written')
    except OSError:
        print('refused')
"""
    done = await bench.run(code, inputs={"data/a.csv": b"1,2"})
    assert done.stdout.split() == ["1,2", *["refused"] * 5]


async def test_artifacts_are_taken_over_with_their_digests(bench: Bench) -> None:
    code = """
import os
os.makedirs('/workspace/artifacts/plots')
open('/workspace/artifacts/plots/a.png', 'wb').write(b'png')
open('/output/b.txt', 'w').write('text')
os.symlink('/etc/passwd', '/output/link')
"""
    harvest = (await bench.run(code)).harvest
    assert [(each.path, each.content, each.sha256) for each in harvest.artifacts] == [
        ("b.txt", b"text", hashlib.sha256(b"text").hexdigest()),
        ("plots/a.png", b"png", hashlib.sha256(b"png").hexdigest()),
    ]
    assert harvest.notes == ("artifact link was not collected: symlink",)


async def test_only_what_the_guest_wrote_counts_as_written(bench: Bench) -> None:
    code = "open('touched', 'a').write('x'); open('new', 'w').write('y'); open('/tmp/elsewhere', 'w').write('z')"
    done = await bench.run(code, files={"touched": b"1", "untouched": b"2"})
    assert sorted(done.harvest.files_written) == ["new", "touched"]


async def test_files_of_a_killed_guest_are_still_there(bench: Bench) -> None:
    code = "open('/output/half', 'w').write('half')\nwhile True: pass"
    done = await bench.run(code, wall_seconds=1.0)
    assert done.ending.killed_by == "wall_timeout"
    assert [artifact.content for artifact in done.harvest.artifacts] == [b"half"]


async def test_nothing_of_one_run_is_seen_by_the_next(bench: Bench) -> None:
    places = ("/tmp", "/dev/shm", "/home/sandbox", "/workspace/work", "/workspace/artifacts")
    await bench.run("\n".join(f"open('{place}/left', 'w').write('x')" for place in places))
    done = await bench.run(f"import os; print([os.listdir(place) for place in {places!r}])")
    assert done.stdout == "[[], [], [], [], []]\n"


async def test_artifacts_beyond_their_limit_are_named_and_not_read(bench: Bench) -> None:
    code = "open('/output/a', 'wb').write(bytes(600)); open('/output/b', 'wb').write(bytes(600))"
    harvest = (await bench.run(code, artifact_bytes=1000)).harvest
    assert len(harvest.artifacts) == 1
    assert any("artifact_bytes" in note for note in harvest.notes)


@pytest.mark.parametrize("place", ["/workspace/work", "/tmp", "/dev/shm", "/workspace/artifacts", "/home/sandbox"])
async def test_the_disk_limit_holds_wherever_the_guest_writes(bench: Bench, place: str) -> None:
    code = f"open('{place}/big', 'wb').write(bytes({6 * MIB}))"
    done = await bench.run(code, spec={"disk_bytes": 4 * MIB})
    assert "No space left on device" in done.stderr
