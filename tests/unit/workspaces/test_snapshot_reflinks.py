"""On a file system that shares blocks, a snapshot of a large file takes next to nothing, and stays what it was."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.capability.limits import MIB, Limits
from ringfence.workspaces import snapshot_store, snapshots
from ringfence.workspaces.session import SessionWorkspace

pytestmark = pytest.mark.needs("btrfs")
LIMITS = Limits(disk_bytes=128 * MIB)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * MIB)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    done = subprocess.run(["mount", "-o", "loop", image, mounted], check=False)
    if done.returncode:
        pytest.skip("no loop device can be mounted here")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", mounted], check=True)


def used(place: Path) -> int:
    os.sync()
    disk = os.statvfs(place)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def test_a_large_file_is_shared_and_not_copied(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SessionWorkspace.create(shared / "home", "p") as session:
        project = shared / "home/workspace/projects/p"
        content = os.urandom(50 * MIB + 13)
        for name, what in (("large", content), ("small", b"x"), ("other", os.urandom(2 * MIB + 1))):
            (project / "work" / name).write_bytes(what)
            if session.owner is not None:
                os.chown(project / "work" / name, *session.owner)
        before = used(shared)
        first = snapshots.take(session, "", LIMITS)
        assert used(shared) - before < 2 * MIB
        with (project / "work/large").open("r+b") as file:
            file.write(b"written in place")  # as no guest can: the snapshot has its own view of the blocks
        assert snapshots.verify(session) == {first.info.id: True}
        snapshots.restore(session, first.info.id, LIMITS)
        assert (project / "work/large").read_bytes() == content
        (project / "work/new").write_bytes(b"new")
        monkeypatch.setattr(snapshot_store, "MOST_PACKS", 0)
        last = snapshots.take(session, "", LIMITS)
        snapshots.delete(session, first.info.id)  # merges the packs, sharing again
        assert len(list((project / "snapshots").glob("*.pack"))) == 1
        assert snapshots.verify(session) == {last.info.id: True}
