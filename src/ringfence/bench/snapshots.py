"""What keeping a workspace costs, to copying it: `cp -a`, the first snapshot and one with a hundredth changed."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.bench import promise
from ringfence.bench.bare import WrongOutput
from ringfence.bench.promise import Line, judged
from ringfence.bench.proof import on_disk
from ringfence.bench.series import Series
from ringfence.bench.subject import Bench, Measured

if TYPE_CHECKING:
    from ringfence.managed_workspace import ManagedWorkspace

FILE_BYTES = 20_000
CHANGED_SHARE = 100
_IN_A_DIRECTORY = 100
_MS = 1000
_SESSION = "snapshots"


async def snapshots(bench: Bench) -> Measured:
    """A workspace of 10,000 files and 200 MB: copied with `cp -a`, kept whole, and kept with 1 % changed, in turn."""
    from ringfence.capability.limits import Limits
    from ringfence.facade import SandboxManager

    settings = bench.settings
    with on_disk(bench.home) as (home, refused):
        if refused:
            return Measured(
                tuple(judged(each, None, refused) for each in (promise.SNAPSHOT_FIRST, promise.SNAPSHOT_NEXT))
            )
        limits = Limits(disk_bytes=2 * settings.snapshot_files * FILE_BYTES, inodes=2 * settings.snapshot_files)
        async with SandboxManager(_SESSION, home=home, pool_size=0, limits=limits) as manager:
            files = manager.workspace
            await files.snapshots()  # makes the session
            tree = _Tree(home / "workspace/projects" / _SESSION / "work", settings.snapshot_files)
            tree.fill()
            taken = [
                await _round(files, tree, home / f"copy-{number}", number) for number in range(settings.snapshot_rounds)
            ]
    copied, first, following = (
        Series(f"snapshots: {name}", tuple(one[place] for one in taken))
        for place, name in enumerate(("cp -a", "first", "1 % changed"))
    )
    return Measured(lines(copied, first, following, settings.snapshot_files), (copied, first, following))


def lines(copied: Series, first: Series, following: Series, files: int) -> tuple[Line, ...]:
    """Hold both against the copy."""
    size = f"{files:,} files, {files * FILE_BYTES / 1e6:.0f} MB, n={len(copied.seconds)}"
    return tuple(
        judged(promised, own.p50 / copied.p50, f"{own.p50 * _MS:.0f} ms to {copied.p50 * _MS:.0f} ms; {size}")
        for promised, own in ((promise.SNAPSHOT_FIRST, first), (promise.SNAPSHOT_NEXT, following))
    )


class _Tree:
    """The files of the session, written as a commit writes them: each a new inode of the session's owner."""

    def __init__(self, work: Path, count: int) -> None:
        self.work = work
        self._count = count
        self._random = random.Random(1)  # noqa: S311  what is in the files is no secret
        status = work.stat()
        self._owner = (status.st_uid, status.st_gid)

    def fill(self) -> None:
        for number in range(self._count):
            self._write(number)

    def change(self) -> None:
        for number in self._random.sample(range(self._count), max(1, self._count // CHANGED_SHARE)):
            self._write(number)

    def _write(self, number: int) -> None:
        directory = self.work / f"{number // _IN_A_DIRECTORY}"
        if not directory.exists():
            directory.mkdir()
            os.chown(directory, *self._owner)
        new = directory / "new"
        new.write_bytes(self._random.randbytes(FILE_BYTES))
        os.chown(new, *self._owner)
        new.rename(directory / f"{number}")


async def _round(files: ManagedWorkspace, tree: _Tree, copy: Path, number: int) -> tuple[float, float, float]:
    # copies stay until the end: some file systems are slow for a while to make files after as many were deleted
    for kept in await files.snapshots():
        await files.delete_snapshot(kept["snapshot_id"])

    async def copied() -> None:
        subprocess.run(["cp", "-a", tree.work, copy], check=True)  # noqa: S607, ASYNC221  nothing else is to run

    async def first() -> None:
        info = await files.snapshot("first")
        if info["bytes"] != info["added_bytes"]:
            raise WrongOutput(f"the first snapshot did not keep everything: {info}")

    both = [copied, first] if number % 2 else [first, copied]
    taken = {step: await _timed(step) for step in both}
    tree.change()

    async def following() -> None:
        info = await files.snapshot("1 % changed")
        if not 0 < info["added_bytes"] < info["bytes"]:
            raise WrongOutput(f"the next snapshot did not keep what changed: {info}")

    return taken[copied], taken[first], await _timed(following)


async def _timed(step: Callable[[], Awaitable[None]]) -> float:
    os.sync()  # what the one before it left to write is not to be paid by this one
    began = time.perf_counter()
    await step()
    return time.perf_counter() - began
