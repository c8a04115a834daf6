"""A workspace with a broker over it and a secret beside it, for the attacks on what touches files for an agent.

Each defence was taken out once and a test of the brokers seen red: NO_SYMLINKS and BENEATH, the look before opening,
the check of the last name before a write, the temporary name, NOREPLACE, the caps, the scope of a handle, the lock of
a space.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.errors import RingfenceError
from ringfence.executors.fs import FsBroker
from ringfence.operation.brokered import FsDelete, FsList, FsMkdir, FsOperation, FsRead, FsStat, FsWrite
from ringfence.outcome import BrokerOutcome
from ringfence.workspaces import beneath
from ringfence.workspaces.files import Area

SECRET = "SECRET-HOST-CONTENT"
OPERATIONS: dict[str, Callable[[str], FsOperation]] = {
    "read": FsRead,
    "write": lambda path: FsWrite(path, b"planted", overwrite=True),
    "list": FsList,
    "stat": FsStat,
    "mkdir": FsMkdir,
    "delete": FsDelete,
}


class Ground:
    """A workspace, something outside it, and the broker between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outside = root / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_text(SECRET)
        self.areas = {}
        for name in ("work", "inputs", "artifacts"):
            (root / name).mkdir()
            fd = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.areas[name] = Area(fd, writable=name == "work")
        self.work = root / "work"
        self.broker = FsBroker(self.areas)

    def with_links(self) -> FsBroker:
        return FsBroker({"work": Area(self.areas["work"].fd, in_tree_links=True)})

    def plant_links(self) -> None:
        (self.work / "real").mkdir()
        (self.work / "real" / "file").write_text("inside")
        for name, target in {
            "link": str(self.outside / "secret"),
            "directory": str(self.outside),
            "climbs": "../outside/secret",
            "climbs-up": "..",
            "root": "/proc/self/root",
            "cwd": "/proc/self/cwd",
            "magic": f"/proc/self/fd/{self.areas['work'].fd}",
            "loop": "loop",
            "dangling": str(self.outside / "new"),
        }.items():
            os.symlink(target, self.work / name)

    def clear(self) -> None:
        for path in self.work.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def untouched(self) -> bool:
        left = {path.name: path.read_text() for path in self.outside.iterdir()}
        return left == {"secret": SECRET} and sorted(p.name for p in self.root.iterdir()) == [
            "artifacts",
            "inputs",
            "outside",
            "work",
        ]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    """Give a test such a workspace, of its own."""
    made = Ground(tmp_path)
    yield made
    for area in made.areas.values():
        os.close(area.fd)


@pytest.fixture(params=["openat2", "walk"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernel as it is, and one that has no openat2."""
    if request.param == "walk":
        monkeypatch.setattr(beneath, "_SYS_OPENAT2", 100_000)
    name: str = request.param
    return name


def attempt(broker: FsBroker, operation: FsOperation) -> BrokerOutcome | RingfenceError:
    """Carry out what may well be refused, and return what came of it."""
    try:
        return broker.perform(operation, inline=True)
    except RingfenceError as error:
        return error


OUTWARDS = [
    "../outside/secret",
    "work/../../outside/secret",
    "work/../work/../../outside/secret",
    "..",
    "/etc/passwd",
    "//etc/passwd",
    "//workspace/work/real",
    "/workspace/../etc/passwd",
    "/workspace/work/../../etc/passwd",
    "/workspacework/x",
    "/proc/self/root/etc/passwd",
    "work/link/x",
    "work/directory/secret",
    "work/climbs-up/outside/secret",
    "work/root/etc/passwd",
    "work/cwd/x",
    "work/magic/real/file",
    "work/loop/x",
]
ENDING_IN_A_LINK = ["work/link", "work/directory", "work/climbs", "work/magic", "work/loop", "work/dangling"]
