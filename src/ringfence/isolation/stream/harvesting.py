"""Fetches what a dead guest left in its container, and has it judged as if it had been left on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ringfence.capability.limits import Limits
from ringfence.dataclass import replace
from ringfence.isolation.protocol import Kind, ProtocolError
from ringfence.isolation.stream import wire
from ringfence.isolation.stream.arriving import Area, Arrival
from ringfence.isolation.stream.line import HungUp, Silence
from ringfence.outcome import FileChanges
from ringfence.ports import Harvest, Keeping
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.changes import MAX_DEPTH
from ringfence.workspaces.run_directory import MAX_WRITTEN, RunDirectory
from ringfence.workspaces.session import SessionWorkspace

SILENCE_SECONDS = 30.0
"""How long a container may take from one message of its harvest to the next."""
MOST_SECONDS = 600.0
"""How long a whole harvest may take, however steadily it comes."""
_NAMES = {wire.WORK: "upper", wire.ARTIFACTS: "artifacts"}


class Teller(Protocol):
    """Whoever can tell what a guest left: a container, over its line."""

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Be asked."""
        ...

    def hear(self, deadline: float) -> tuple[Kind, bytes]:
        """Return the next message."""
        ...


def lost(why: str) -> Harvest:
    """Return what is left of files that cannot be had."""
    changes = FileChanges(complete=False, kept=False)
    return Harvest(notes=(f"the files of the run are lost: {why}",), changes=changes)


def harvest(
    talk: Teller, session: SessionWorkspace | None, generation: int, limits: Limits, keeping: Keeping
) -> Harvest:
    """Fetch the files and do with them as `keeping` says; a container that lies about them has none."""
    directory = RunDirectory(None if session is None else session.owner, session, generation, only_grows=False)
    with _scratch(directory) as areas:
        bounds = _bounds(limits, with_session=session is not None)
        talk.say(Kind.HARVEST, json.dumps(bounds).encode())
        arrival = Arrival(
            {
                area: Area(
                    fd,
                    bounds[name]["entries"],
                    bounds[name]["depth"],
                    bounds[name]["bytes"],
                    least_size=_least_size(area, limits, with_session=session is not None),
                    contents=area == wire.ARTIFACTS or session is not None,
                )
                for area, name, fd in areas
            },
            with_session=session is not None,
        )
        try:
            with acting_as(directory.owner):
                _receive(talk, arrival)
        except (ProtocolError, HungUp) as error:
            return lost(f"the container did not tell them as it should ({str(error) or 'it ended'})")
        except Silence:
            return lost("the container did not send them")
        except OSError as error:
            return lost(f"they do not fit here ({error.strerror})")
        finally:
            arrival.close()
        directory.count_as_placed(arrival.untouched)
        if arrival.complete or session is None:
            return directory.harvest(limits, keeping)
        # without knowing all of it, nobody knows what of the session is gone
        directory.session = None
        found = directory.harvest(limits, keeping)
        note = "the changes to the session's files were not kept: there are too many, or they lie too deep"
        return replace(found, notes=(*found.notes, note), changes=replace(found.changes, kept=False))


def _bounds(limits: Limits, *, with_session: bool) -> dict[str, dict[str, int]]:
    """Return what is asked for: of everything one more than is taken, so that whoever looks sees that there is more."""
    artifacts, work = 2 * limits.artifact_count + 64, 2 * limits.inodes if with_session else MAX_WRITTEN
    return {
        "artifacts": {
            "entries": artifacts + 1,
            "depth": limits.artifact_depth + 1,
            "bytes": limits.artifact_bytes,
            "count": limits.artifact_count,
        },
        "work": {"entries": work + 1, "depth": MAX_DEPTH + 1, "bytes": limits.disk_bytes},
        "session": {"kept": int(with_session)},
    }


def _least_size(area: int, limits: Limits, *, with_session: bool) -> int:
    if area == wire.ARTIFACTS:
        return limits.artifact_bytes + 1
    return limits.disk_bytes + 1 if with_session else 0


def _receive(talk: Teller, arrival: Arrival) -> None:
    last = time.monotonic() + MOST_SECONDS
    while not arrival.hear(*talk.hear(min(last, time.monotonic() + SILENCE_SECONDS))):
        if time.monotonic() >= last:
            raise Silence


@contextmanager
def _scratch(directory: RunDirectory) -> Iterator[list[tuple[int, str, int]]]:
    """Make a directory of nobody else's for what comes, and remove it."""
    path = tempfile.mkdtemp(prefix="ringfence-harvest-")
    with contextlib.ExitStack() as last:
        last.callback(shutil.rmtree, path, ignore_errors=True)
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        last.callback(os.close, root)
        areas = []
        for area, name in ((wire.WORK, "work"), (wire.ARTIFACTS, "artifacts")):
            os.mkdir(_NAMES[area], 0o700, dir_fd=root)
            fd = open_beneath(root, _NAMES[area], os.O_RDONLY | os.O_DIRECTORY)
            last.callback(os.close, fd)
            if directory.owner is not None:
                os.fchown(fd, *directory.owner)
            areas.append((area, name, fd))
        directory.arrive(root)
        yield areas
