"""What the steps of a run would do to a work directory, path by path: the one answer that rules and people are shown.

An upper says little by itself: one mark can take away a thousand files, and a file that takes a directory's place takes
what was in it. So every path that would no longer be what it is counts as touched, however the run went about it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from ringfence.capability.limits import SYSTEM_CEILING
from ringfence.dataclass import dataclass
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.survey import Kind, Step


class Effect(StrEnum):
    """What becomes of one path."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Touched:
    """One path that would not be what it was; `is_directory` says what it is afterwards, or was where it is gone."""

    effect: Effect
    is_directory: bool
    size: int = 0
    """The larger of its sizes before and after: who empties a file changes all of it."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much somebody changes."""

    paths: int
    bytes: int

    def is_within(self, most: Amount) -> bool:
        """Whether neither is more than in `most`."""
        return self.paths <= most.paths and self.bytes <= most.bytes


ANY_AMOUNT = Amount(SYSTEM_CEILING.changed_paths, SYSTEM_CEILING.changed_bytes)


def amount(changes: Mapping[bytes, Touched]) -> Amount:
    """Return how much `changes` are."""
    return Amount(len(changes), sum(change.size for change in changes.values()))


def touched(present: Iterable[Step], steps: Iterable[Step]) -> dict[bytes, Touched]:
    """Return every path that `steps` (parents first) would change in a work directory of `present` entries."""
    were = {step.path: step for step in present}
    ordered = sorted(were)
    found: dict[bytes, Touched] = {}
    for step in steps:
        was = were.get(step.path)
        if step.kind is not Kind.DIRECTORY:
            # whatever takes the place of a directory, and a directory that hides another, takes all that was below
            found.update(
                (path, Touched(Effect.DELETED, _is_directory(were[path]), were[path].size))
                for path in _below(ordered, step.path)
            )
        if step.kind in (Kind.WHITEOUT, Kind.SPECIAL):
            if was is not None:
                found[step.path] = Touched(Effect.DELETED, _is_directory(was), was.size)
        elif was is None:
            found[step.path] = Touched(Effect.ADDED, _is_directory(step), step.size)
        elif _is_directory(step) and _is_directory(was) and _same_mode(was, step):
            found.pop(step.path, None)  # there before and after, whatever becomes of what is in it
        else:
            found[step.path] = Touched(Effect.MODIFIED, _is_directory(step), max(was.size, step.size))
    return found


def is_within(changes: Mapping[bytes, Touched], may: Callable[[str], bool]) -> bool:
    """Whether `may` says yes of every path; a new directory may also lie on the way to one of which it does."""
    refused = {path for path in changes if not may(harmless_path(path))}
    on_the_way = {above for path in changes.keys() - refused for above in _above(path)}
    return all(
        path in on_the_way and changes[path].is_directory and changes[path].effect is Effect.ADDED for path in refused
    )


def _above(path: bytes) -> Iterator[bytes]:
    while (cut := path.rfind(b"/")) >= 0:
        path = path[:cut]
        yield path


def _below(ordered: list[bytes], path: bytes) -> Iterator[bytes]:
    prefix = path + b"/"
    at = bisect_left(ordered, prefix)
    while at < len(ordered) and ordered[at].startswith(prefix):
        yield ordered[at]
        at += 1


def _is_directory(step: Step) -> bool:
    return step.kind in (Kind.DIRECTORY, Kind.OPAQUE)


def _same_mode(was: Step, step: Step) -> bool:
    return (was.mode & 0o777) == (step.mode & 0o777 | 0o700)
