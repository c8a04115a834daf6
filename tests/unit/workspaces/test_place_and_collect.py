from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.workspaces.collect import Skipped, collect
from ringfence.workspaces.names import harmless
from ringfence.workspaces.place import check_names, place

segments = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="/"), min_size=1, max_size=8
)
names = st.lists(segments.filter(lambda part: part not in (".", "..")), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(names, st.binary(max_size=64), max_size=8))
def test_what_was_placed_is_what_is_collected(files: dict[str, bytes]) -> None:
    try:
        check_names(files)
    except InvalidRequest:
        return
    with tempfile.TemporaryDirectory() as directory:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            place(fd, files, owner=None)
            found = collect(fd, max_bytes=10_000, max_count=100, max_depth=8)
        finally:
            os.close(fd)
    assert {artifact.path: artifact.content for artifact in found.artifacts} == {
        "/".join(harmless(part.encode()) for part in name.split("/")): content for name, content in files.items()
    }
    assert all(hashlib.sha256(a.content).hexdigest() == a.sha256 and len(a.content) == a.size for a in found.artifacts)
    assert (found.skipped, found.truncated) == ((), False)


@pytest.mark.parametrize("files", [["a", "./a"], ["a", "a/b"], ["a/b/c", "a/b"], ["good", "../bad"]])
def test_conflicting_names_are_refused_before_anything_is_written(files: list[str], tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(InvalidRequest):
        place(fd, dict.fromkeys(files, b"x"), owner=None)
    os.close(fd)
    assert list(tmp_path.iterdir()) == []


def test_modes_do_not_depend_on_the_umask_of_the_application(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = os.umask(0o077)
    try:
        place(fd, {"d/f": b"x"}, owner=None)
    finally:
        os.umask(before)
        os.close(fd)
    assert [(tmp_path / p).stat().st_mode & 0o7777 for p in ("d", "d/f")] == [0o755, 0o644]


def test_beyond_the_byte_cap_names_are_kept_and_content_is_not(tmp_path: Path) -> None:
    for name, size in (("a", 6), ("b", 5), ("c", 4)):
        (tmp_path / name).write_bytes(b"x" * size)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    found = collect(fd, max_bytes=10, max_count=10, max_depth=4)
    os.close(fd)
    assert [artifact.path for artifact in found.artifacts] == ["a", "c"]
    assert (found.skipped, found.truncated) == ((Skipped("b", "artifact_bytes"),), True)


def test_beyond_the_count_cap_names_are_kept(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    found = collect(fd, max_bytes=10, max_count=2, max_depth=4)
    os.close(fd)
    assert (len(found.artifacts), found.skipped, found.truncated) == (2, (Skipped("c", "artifact_count"),), True)
