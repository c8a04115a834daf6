"""Private files: only ours, never half there, never through a link, never more than was to be read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.errors import Unavailable
from ringfence.private_files import (
    create_file,
    destroy_file,
    inner_directory,
    list_names,
    open_file,
    private_directory,
    private_directory_if_any,
    read_file,
    remove_file,
    replace_file,
    written_at_ms,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "d"


@pytest.fixture
def directory(place: Path) -> Iterator[int]:
    with private_directory(place, make=True) as fd:
        yield fd


def test_directories_and_files_are_for_their_owner_alone_whatever_the_umask(place: Path) -> None:
    for umask in (0, 0o777):
        old = os.umask(umask & 0o77)
        try:
            with private_directory(place, make=True) as directory, inner_directory(directory, f"in{umask}") as inner:
                os.umask(umask)
                create_file(inner, "created", b"")
                replace_file(inner, "replaced", b"")
        finally:
            os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (place, *place.rglob("*"))}
    assert modes == {0o700, 0o600}


def test_a_file_is_never_replaced_by_one_that_is_to_be_new_and_leaves_no_draft(place: Path, directory: int) -> None:
    create_file(directory, "x", b"first")
    with pytest.raises(FileExistsError):
        create_file(directory, "x", b"second")
    assert [(path.name, path.read_bytes()) for path in place.iterdir()] == [("x", b"first")]


def test_a_file_that_is_replaced_is_another_file_and_leaves_no_draft(place: Path, directory: int) -> None:
    replace_file(directory, "x", b"first")
    before = (place / "x").open("rb")
    with before:
        replace_file(directory, "x", b"second")
        assert before.read() == b"first"
    assert read_file(directory, "x", 6) == b"second"
    assert list_names(directory) == ["x"]


@pytest.mark.parametrize("write", [create_file, replace_file])
def test_a_disk_that_fails_leaves_what_was_there(
    directory: int, write: Callable[[int, str, bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file(directory, "x", b"first")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write(directory, "x", b"second")
    assert list_names(directory) == ["x"]
    assert read_file(directory, "x", 5) == b"first"


def test_what_would_leave_too_little_of_the_disk_is_not_begun(directory: int) -> None:
    with pytest.raises(OSError, match="No space") as refused:
        replace_file(directory, "x", b"x", keep_free=2**62)
    assert refused.value.errno == errno.ENOSPC
    assert list_names(directory) == []


def test_no_more_is_read_than_was_to_be_there(directory: int) -> None:
    create_file(directory, "x", b"12345")
    assert read_file(directory, "x", 5) == b"12345"
    with pytest.raises(Unavailable, match="more than the 4 bytes") as refused:
        read_file(directory, "x", 4)
    assert refused.value.reason == "key_store_unsafe"


def test_more_than_one_chunk_comes_back_whole(directory: int) -> None:
    content = os.urandom((2 << 20) + 1)
    create_file(directory, "x", content)
    assert read_file(directory, "x", len(content)) == content


def test_what_is_not_there_is_told_apart_and_nothing_is_made(place: Path) -> None:
    with pytest.raises(FileNotFoundError), private_directory(place, make=False):
        pass
    with private_directory_if_any(place) as missing:
        assert missing is None
    assert not place.exists()
    with private_directory(place, make=True) as directory:
        with pytest.raises(FileNotFoundError):
            read_file(directory, "x", 1)
        assert written_at_ms(directory, "x") is None
        assert (remove_file(directory, "x"), destroy_file(directory, "x")) == (False, False)
    with private_directory_if_any(place) as there:
        assert there is not None


def test_who_fails_inside_a_directory_that_may_be_missing_is_heard(place: Path) -> None:
    with pytest.raises(FileNotFoundError, match="inside"), private_directory_if_any(place):
        raise FileNotFoundError("inside")


def test_files_are_removed_and_their_age_is_told(place: Path, directory: int) -> None:
    create_file(directory, "x", b"")
    os.utime(place / "x", ns=(0, 1_234_567_890))
    assert written_at_ms(directory, "x") == 1234
    assert remove_file(directory, "x")
    assert list_names(directory) == []


def test_a_destroyed_file_is_overwritten_before_its_name_goes(place: Path, directory: int) -> None:
    create_file(directory, "x", b"secret" * 10)
    (place / "x").chmod(0o644)  # that others could read it is no reason to keep it
    os.link(place / "x", place / "copy")
    assert destroy_file(directory, "x")
    assert list_names(directory) == ["copy"]
    left = (place / "copy").read_bytes()
    assert (len(left), b"secret" in left) == (60, False)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def own_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


@pytest.mark.parametrize("plant", [link, fifo, own_directory])
def test_what_is_no_file_of_ours_is_neither_read_nor_overwritten(
    place: Path, directory: int, plant: Callable[[Path], None]
) -> None:
    create_file(directory, "x", b"content")
    plant(place / "x")
    before = len(os.listdir("/proc/self/fd"))
    for attempt in (lambda: read_file(directory, "x", 10), lambda: destroy_file(directory, "x")):
        with pytest.raises(Unavailable) as refused:
            attempt()
        assert refused.value.reason == "key_store_unsafe"
    assert len(os.listdir("/proc/self/fd")) == before
    if plant is link:
        assert (place / "elsewhere").read_bytes() == b"content"


def test_a_file_that_others_may_read_is_not_opened(place: Path, directory: int) -> None:
    create_file(directory, "x", b"")
    (place / "x").chmod(0o640)
    with pytest.raises(Unavailable) as refused:
        open_file(directory, "x", os.O_RDWR)
    assert refused.value.fix == f"chmod 600 {place / 'x'}"


@pytest.mark.needs("root")
def test_a_file_or_a_directory_of_somebody_else_is_not_opened(place: Path, directory: int) -> None:
    create_file(directory, "x", b"")
    os.chown(place / "x", 65534, 65534)
    with pytest.raises(Unavailable, match="belongs to user 65534"):
        read_file(directory, "x", 1)
    os.chown(place, 65534, 65534)
    with pytest.raises(Unavailable, match="belongs to user 65534"), private_directory(place, make=True):
        pass


def test_a_link_or_an_open_directory_inside_is_not_entered(place: Path, directory: int) -> None:
    with inner_directory(directory, "in"):
        pass
    (place / "in").chmod(0o750)
    with pytest.raises(Unavailable, match="mode 750"), inner_directory(directory, "in"):
        pass
    (place / "in").chmod(0o700)
    link(place / "in")
    with pytest.raises(Unavailable, match="directory of ours"), inner_directory(directory, "in"):
        pass
