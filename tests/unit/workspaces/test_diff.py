"""Diffs: the law that applying one gives the new text, and what is listed, shown and left out."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.capability.limits import Limits
from ringfence.workspaces import snapshots
from ringfence.workspaces.agent import AgentWorkspace
from ringfence.workspaces.diff import DiffCaps, diff, differing
from ringfence.workspaces.diff_text import edits_between, unified
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.snapshot_index import Node

LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "x"]), max_size=30)


@given(LINES, LINES, st.sampled_from([0, 5, 400_000]))
@settings(max_examples=200, deadline=None)
def test_the_edits_lead_from_one_to_the_other_however_little_may_be_spent(
    a: list[str], b: list[str], most: int
) -> None:
    made: list[str] = []
    at = 0
    for edit in edits_between(a, b, most_steps=most):
        assert edit.a_from >= at
        made += a[at : edit.a_from]
        assert len(made) == edit.b_from
        made += b[edit.b_from : edit.b_to]
        at = edit.a_to
    assert made + a[at:] == b


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
@settings(max_examples=100, deadline=None)
def test_no_shorter_edit_exists(a: list[str], b: list[str]) -> None:
    found = sum(e.a_to - e.a_from + e.b_to - e.b_from for e in edits_between(a, b))
    longest = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for x, one in enumerate(a):
        for y, other in enumerate(b):
            longest[x + 1][y + 1] = longest[x][y] + 1 if one == other else max(longest[x][y + 1], longest[x + 1][y])
    assert found == len(a) + len(b) - 2 * longest[-1][-1]


@given(LINES, LINES)
@settings(max_examples=100, deadline=None)
def test_a_patch_can_be_applied(a: list[str], b: list[str]) -> None:
    before, after = "".join(a), "".join(b)
    patch = unified(before, after, before="a/f", after="b/f")
    assert applied(before, patch) == after
    assert bool(patch) == (before != after)


def applied(text: str, patch: str) -> str:
    """Apply a unified diff the slow and obvious way."""
    lines = text.split("\n")
    source = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    made: list[str] = []
    at = 0
    marked = patch.splitlines(keepends=True)[2:]
    for number, line in enumerate(marked):
        bare = marked[number + 1].startswith("\\") if number + 1 < len(marked) else False
        content = line[1:-1] if bare else line[1:]
        match line[0]:
            case "@":
                start, _, length = line.split()[1][1:].partition(",")
                first = int(start) if length == "0" else int(start) - 1
                made += source[at:first]
                at = first
            case " " | "-":
                assert source[at] == content
                made += [content] if line[0] == " " else []
                at += 1
            case "+":
                made.append(content)
            case _:
                assert line.startswith("\\ No newline")
    return "".join(made + source[at:])


def test_a_pair_of_files_made_to_be_slow_is_shown_as_replaced() -> None:
    a = [f"{number}\n" for number in range(30_000)]
    b = [f"{number}\n" for number in range(30_000, 0, -1)]
    assert len(edits_between(a, b)) == 1


def test_a_time_alone_is_no_difference() -> None:
    one = Node(b"a", 0o100644, 1, 5, b"d" * 32, b"")
    assert differing({b"a": one}, {b"a": one._replace(mtime_ns=9)}) == []
    assert [pair.change for pair in differing({b"a": one}, {b"a": one._replace(mode=0o100755)})] == ["modified"]
    assert [pair.change for pair in differing({b"a": one}, {})] == ["deleted"]


def test_what_was_added_modified_and_deleted_since_a_snapshot(tmp_path: Path) -> None:
    with AgentWorkspace("s", home=tmp_path) as files, SessionWorkspace.create(tmp_path, "s") as session:
        files.write_file("kept.txt", "same\n")
        files.write_file("changed.txt", "one\ntwo\nthree\n")
        files.write_file("gone.txt", "going\n")
        files.write_file("picture.bin", b"\x00\x01")
        since = snapshots.take(session, "", Limits()).info.id
        files.write_file("changed.txt", "one\n2\nthree\n")
        files.write_file("d/new.txt", "new")
        files.write_file("picture.bin", b"\x00\x02")
        files.delete_file("gone.txt")
        found = diff(session, since)
    told = [(change.path, change.change, change.text) for change in found.changes]
    assert told == [
        ("changed.txt", "modified", "shown"),
        ("d", "added", ""),
        ("d/new.txt", "added", "shown"),
        ("gone.txt", "deleted", "shown"),
        ("picture.bin", "modified", "binary"),
    ]
    assert (found.added, found.modified, found.deleted, found.complete) == (2, 2, 1, True)
    assert found.patch == (
        "--- a/changed.txt\n+++ b/changed.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        "--- /dev/null\n+++ b/d/new.txt\n@@ -0,0 +1 @@\n+new\n\\ No newline at end of file\n"
        "--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-going\n"
    )


def test_a_file_written_again_with_the_same_content_is_no_change(tmp_path: Path) -> None:
    with AgentWorkspace("s", home=tmp_path) as files, SessionWorkspace.create(tmp_path, "s") as session:
        files.write_file("a", "same")
        since = snapshots.take(session, "", Limits()).info.id
        files.write_file("a", "same")
        assert diff(session, since).changes == ()


def test_caps_leave_out_texts_and_names_and_say_so(tmp_path: Path) -> None:
    with AgentWorkspace("s", home=tmp_path) as files, SessionWorkspace.create(tmp_path, "s") as session:
        for number in range(6):
            files.write_file(f"{number}", "x" * 10 if number else "x" * 100)
        found = diff(
            session, None, caps=DiffCaps(names=4, texts=2, file_bytes=50), hidden=lambda path: path == "work/1"
        )
        assert [change.text for change in found.changes] == ["too_large", "denied", "shown", "shown"]
        assert (found.added, found.complete) == (6, False)
        few = diff(session, None, caps=DiffCaps(texts=1))
        assert [change.text for change in few.changes] == ["shown", *["too_many"] * 5]
        small = diff(session, None, caps=DiffCaps(patch_bytes=60))
        assert len(small.patch) <= 60


def test_a_directory_that_became_a_file_is_told_by_path(tmp_path: Path) -> None:
    with AgentWorkspace("s", home=tmp_path) as files, SessionWorkspace.create(tmp_path, "s") as session:
        files.write_file("d/a", "1\n")
        since = snapshots.take(session, "", Limits()).info.id
        files.delete_file("d/a")
        files.delete_file("d")
        files.write_file("d", "file\n")
        found = diff(session, since)
        assert [(change.path, change.change) for change in found.changes] == [("d", "modified"), ("d/a", "deleted")]
        assert os.listdir(tmp_path / "workspace/projects/s/work") == ["d"]
