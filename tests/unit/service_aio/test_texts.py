"""Edits, forms and stretches of output: pure, so their laws can be tried."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.processes.ring import Piece
from ringfence.service.aio import commands, editing, look
from ringfence.service.aio.multipart import Part, read_form

lines = st.lists(st.text(st.sampled_from("ab \t"), max_size=5), max_size=6).map("\n".join)


@given(lines, st.integers(0, 8), st.integers(0, 8))
def test_ranges_that_meet_are_the_text(text: str, first: int, second: int) -> None:
    low, high = sorted((first, second))
    parts = [editing.line_range(text, *ends) for ends in ((None, low), (low, high), (high, None))]
    assert "".join(parts) == text


@given(lines, st.text("ab", min_size=1, max_size=2))
def test_a_replacement_leaves_nothing_of_what_was_replaced(text: str, old: str) -> None:
    changed, count = editing.replaced(text, old, "Z")
    assert (count, changed.count("Z")) == (text.count(old), text.count(old))
    assert old not in changed


@given(lines, st.integers(-2, 10), st.text("xy", max_size=3))
def test_lines_that_were_put_in_are_where_they_were_put(text: str, after: int, new: str) -> None:
    before = text.splitlines()
    if not 0 <= after <= len(before):
        with pytest.raises(InvalidRequest):
            editing.inserted(text, after, new)
        return
    assert editing.inserted(text, after, new).splitlines() == [
        *before[:after],
        *([new] if new or after < len(before) else []),
        *before[after:],
    ]


def test_one_of_several_is_replaced_only_where_it_is_said_which() -> None:
    for mode, found in ((None, None), (editing.Replace.FIRST, "Zba"), (editing.Replace.LAST, "abZ"), ("ALL", "ZbZ")):
        if found is None:
            with pytest.raises(InvalidRequest):
                editing.replaced_one("aba", "a", "Z", None)
        else:
            assert editing.replaced_one("aba", "a", "Z", editing.Replace(mode or "ALL")) == found
    with pytest.raises(InvalidRequest):
        editing.replaced_one("aba", "c", "Z", editing.Replace.ALL)
    with pytest.raises(InvalidRequest):
        editing.replaced_one("aba", "", "Z", editing.Replace.ALL)


def test_lines_are_shown_with_their_numbers() -> None:
    assert editing.numbered("a\nb\nc\n", 2, 3) == "     2\tb\n     3\tc"
    assert editing.numbered("a\nb") == "     1\ta\n     2\tb"
    assert editing.numbered("") == ""
    for first, last in ((0, 1), (4, -1), (3, 1)):
        with pytest.raises(InvalidRequest):
            editing.numbered("a\nb\nc\n", first, last)


@given(st.binary(max_size=200), st.text('abc/.\\"', max_size=10), st.sampled_from(["b", "----x'()+_,-./:=?"]))
def test_a_form_is_read_as_it_was_written(content: bytes, filename: str, boundary: str) -> None:
    mark = boundary.encode()
    quoted = filename.replace("\\", "\\\\").replace('"', '\\"').encode()
    if b"\r\n--" + mark in b"\r\n" + content:
        return
    body = (
        b'--%s\r\nContent-Disposition: form-data; name="path"\r\n\r\nwork/a\r\n' % mark
        + b'--%s\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n' % (mark, quoted)
        + b"Content-Type: application/octet-stream\r\n\r\n%s\r\n--%s--\r\n" % (content, mark)
    )
    found = read_form(f'multipart/form-data; boundary="{boundary}"', body)
    assert found == {"path": Part("path", None, b"work/a"), "file": Part("file", filename, content)}


@given(st.binary(max_size=300))
def test_no_form_is_ever_more_than_refused(body: bytes) -> None:
    for sent in (body, b"--b" + body, b"--b\r\n" + body + b"\r\n--b--"):
        try:
            read_form("multipart/form-data; boundary=b", sent)
        except InvalidRequest:
            continue


def test_a_body_that_is_no_form_is_refused() -> None:
    for content_type in ("", "application/json", "multipart/form-data", "multipart/form-data; boundary="):
        with pytest.raises(InvalidRequest):
            read_form(content_type, b"--b--")


@given(st.text(max_size=20), st.integers(1, 5))
def test_characters_are_whole_however_the_bytes_come(text: str, step: int) -> None:
    data = text.encode("utf-8", "replace")
    said, offset = "", 0
    for end in [*range(0, len(data), step), len(data)]:
        is_over = end == len(data)
        piece = Piece(offset, data[offset:end], end, 0)
        more, offset = commands._text(piece, is_over=is_over)
        said += more
    assert said == data.decode()


@given(st.binary(max_size=30))
def test_bytes_that_are_no_text_are_told_too(data: bytes) -> None:
    _, taken = commands._text(Piece(0, data, len(data), 0), is_over=False)
    assert len(data) - 3 <= taken <= len(data)
    assert commands._text(Piece(0, data, len(data), 0), is_over=True) == (data.decode("utf-8", "replace"), len(data))


@pytest.mark.parametrize(
    ("pattern", "inside", "meant"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "a.py", True),
        ("**/*.py", "d/e/a.py", True),
        ("d/**", "d/e/a.py", True),
        ("?.py", "ab.py", False),
        ("[ab].py", "b.py", True),
        ("[", "[", True),
        ("a.py", "aXpy", False),
    ],
)
def test_a_pattern_means_paths_as_shells_have_it(pattern: str, inside: str, meant: bool) -> None:
    assert look.fits(pattern, inside) is meant
