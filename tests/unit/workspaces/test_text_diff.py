"""A diff says exactly how one text became another, and says so of no file that would make it long or slow."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.workspaces.text_diff import MOST_FILE_BYTES, unified

LINES = st.lists(st.sampled_from(["a", "b", "c", "d ", "é", "--- x", "+++ y", "@@ z"]), max_size=30)
TEXTS = st.builds(
    lambda lines, end: ("\n".join(lines) + (end if lines else "")).encode(), LINES, st.sampled_from(["", "\n"])
)


def patched(before: bytes, diff: str) -> bytes:
    """Apply a unified diff as `patch` does."""
    old, new, at = re.findall(r"[^\n]*\n|[^\n]+", before.decode()), [], 0
    lines = diff.split("\n")[2:-1]
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        text = line[1:] + ("" if following.startswith("\\") else "\n")
        if head := re.fullmatch(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@", line):
            start = int(head[1]) - (head[2] != "0")
            new += old[at:start]
            at = start
        elif line[0] in " -":
            assert old[at] == text
            at += 1
        if line[0] in " +":
            new.append(text)
    return "".join(new + old[at:]).encode()


@given(TEXTS, TEXTS)
def test_a_diff_applied_to_what_was_gives_what_is(before: bytes, after: bytes) -> None:
    diff = unified("f", before, after)
    assert diff is not None
    assert patched(before, diff) == after


def test_of_a_new_and_of_a_deleted_file_one_side_is_nothing() -> None:
    assert unified("f", None, b"x\n") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n"
    assert unified("f", b"x\n", None) == "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"


@pytest.mark.parametrize("content", [b"\0", b"\xff", b"x" * (MOST_FILE_BYTES + 1)], ids=["nul", "bytes", "large"])
def test_what_is_no_text_or_too_much_is_not_shown(content: bytes) -> None:
    assert unified("f", b"", content) is None
    assert unified("f", content, b"") is None


def test_a_line_of_a_file_cannot_act_on_a_terminal() -> None:
    diff = unified("f", b"", b"\x1b]0;x\x07 \xe2\x80\xae\tz\r\n")
    assert diff is not None
    assert diff.split("\n")[3] == "+\\x1b]0;x\\x07 \\u202e\tz\\r"


def test_a_long_file_that_is_all_other_lines_is_shown_as_replaced() -> None:
    before = b"".join(b"%d\n" % n for n in range(5000))
    after = b"".join(b"%d\n" % n for n in range(5000, 10000))
    diff = unified("f", b"same\n" + before, b"same\n" + after)
    assert diff is not None
    assert diff.startswith("--- a/f\n+++ b/f\n@@ -1,5001 +1,5001 @@\n same\n-0\n-1\n")
    assert patched(b"same\n" + before, diff) == b"same\n" + after
