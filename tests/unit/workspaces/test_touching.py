"""Every path that a run would leave otherwise is touched, and no other, however the run went about it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfence.workspaces.survey import Kind, Step
from ringfence.workspaces.touching import Effect, Touched, touched

NAMES = st.sampled_from([b"a", b"b", b"ab", b".git"])
MODES = st.sampled_from([0o700, 0o755])
LEAVES = st.sampled_from([Kind.FILE, Kind.LINK])
MARKS = st.sampled_from([Kind.FILE, Kind.LINK, Kind.WHITEOUT, Kind.SPECIAL])
Tree = dict[bytes, "tuple[Kind, int, Tree | None]"]


def trees(leaves: st.SearchStrategy[Kind], inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Tree]:
    return st.recursive(
        st.dictionaries(NAMES, st.tuples(leaves, MODES, st.none()), max_size=3),
        lambda deeper: st.dictionaries(
            NAMES, st.tuples(leaves, MODES, st.none()) | st.tuples(inner, MODES, deeper), max_size=3
        ),
        max_leaves=12,
    )


def steps_of(tree: Tree, above: bytes = b"") -> list[Step]:
    """List a tree as a walk does: parents first."""
    steps = []
    for name, (kind, mode, below) in sorted(tree.items()):
        steps.append(Step(above + name, kind, mode, 0))
        steps += steps_of(below or {}, above + name + b"/")
    return steps


def applied(present: list[Step], steps: list[Step]) -> dict[bytes, tuple[str, object]]:
    """Return what is there afterwards: directories by their mode, all else by who wrote it."""
    there: dict[bytes, tuple[str, object]] = {
        step.path: ("directory", step.mode) if step.kind is Kind.DIRECTORY else ("file", "before") for step in present
    }

    def remove(path: bytes) -> None:
        for each in [each for each in there if each == path or each.startswith(path + b"/")]:
            del there[each]

    for number, step in enumerate(steps):
        is_directory = there.get(step.path, ("", None))[0] == "directory"
        if step.kind is Kind.DIRECTORY and is_directory:
            there[step.path] = ("directory", step.mode)
            continue
        remove(step.path)
        if step.kind in (Kind.DIRECTORY, Kind.OPAQUE):
            there[step.path] = ("directory", step.mode)
        elif step.kind in (Kind.FILE, Kind.LINK):
            there[step.path] = ("file", number)
    return there


@given(trees(LEAVES, st.just(Kind.DIRECTORY)), trees(MARKS, st.sampled_from([Kind.DIRECTORY, Kind.OPAQUE])))
def test_what_is_touched_is_what_is_not_as_it_was(before: Tree, upper: Tree) -> None:
    present, steps = steps_of(before), steps_of(upper)
    was, now = applied(present, []), applied(present, steps)
    expected = {
        path: Touched(
            Effect.ADDED if path not in was else Effect.DELETED if path not in now else Effect.MODIFIED,
            (now.get(path) or was[path])[0] == "directory",
        )
        for path in was.keys() | now.keys()
        if was.get(path) != now.get(path)
    }
    assert touched(present, steps) == expected


def test_a_mark_on_a_directory_touches_everything_in_it() -> None:
    present = [
        Step(b".git", Kind.DIRECTORY, 0o755, 0),
        Step(b".git/config", Kind.FILE, 0o644, 1),
        Step(b".github", Kind.FILE, 0o644, 1),
    ]
    for kind in (Kind.WHITEOUT, Kind.FILE, Kind.LINK, Kind.SPECIAL, Kind.OPAQUE):
        assert b".git/config" in touched(present, [Step(b".git", kind, 0o755, 0)])
        assert b".github" not in touched(present, [Step(b".git", kind, 0o755, 0)])


def test_a_directory_that_is_only_on_the_way_is_not_touched() -> None:
    present = [Step(b"d", Kind.DIRECTORY, 0o755, 0)]
    steps = [Step(b"d", Kind.DIRECTORY, 0o755, 0), Step(b"d/new", Kind.FILE, 0o644, 1)]
    assert touched(present, steps) == {b"d/new": Touched(Effect.ADDED, False, 1)}
