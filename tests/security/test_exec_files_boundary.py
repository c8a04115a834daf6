"""The files of an execution, where a hostile guest or anybody else was first with links, directories and fifos."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.errors import PathTraversalError, RingfenceError, Unavailable
from ringfence.outcome import Artifact, ExecutionResult, Status
from ringfence.workspaces.exec_files import OURS, read_artifact, read_exec_files, write_exec_files
from ringfence.workspaces.exec_retention import prune_exec_files
from ringfence.workspaces.session import SessionWorkspace

pytestmark = pytest.mark.guarantee(11)

SECRET = b"SECRET-HOST-CONTENT"
HOSTILE = Artifact("plots/a.png", 4, "0" * 64, b"data")
RESULT = ExecutionResult(Status.SUCCEEDED, exit_code=0, stdout_raw=b"out", stdout_bytes=3, artifacts=(HOSTILE,))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    directory.mkdir()
    for name in (*OURS, "secret"):
        (directory / name).write_bytes(SECRET)
    return directory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    SessionWorkspace.create(home, "p1").close()
    return home


@pytest.fixture
def artifacts(home: Path) -> Path:
    return home / "workspace/projects/p1/artifacts"


def write(home: Path) -> None:
    write_exec_files(home, "p1", "ex_1", RESULT, manifest={}, meta={"exit_code": 0})


def untouched(outside: Path) -> bool:
    return {path.name: path.read_bytes() for path in outside.iterdir()} == dict.fromkeys((*OURS, "secret"), SECRET)


def _link(place: Path, outside: Path) -> None:
    place.symlink_to(outside)


def _link_to_a_file(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "secret")


def _dangling(place: Path, outside: Path) -> None:
    place.symlink_to(outside / "not-yet")


def _directory_of_links(place: Path, outside: Path) -> None:
    place.mkdir()
    for name in (*OURS, "plots"):
        (place / name).symlink_to(outside / name)


def _directory_of_directories(place: Path, outside: Path) -> None:
    del outside
    for name in OURS:
        (place / name / "deep").mkdir(parents=True)


def _fifo(place: Path, outside: Path) -> None:
    del outside
    os.mkfifo(place)


@pytest.mark.parametrize(
    "plant", [_link, _link_to_a_file, _dangling, _directory_of_links, _directory_of_directories, _fifo]
)
def test_what_was_planted_under_the_name_of_an_execution_is_moved_aside_and_never_followed(
    home: Path, artifacts: Path, outside: Path, plant: Callable[[Path, Path], None]
) -> None:
    plant(artifacts / "ex_1", outside)
    write(home)
    found = read_exec_files(home, "p1", "ex_1")
    assert found is not None
    assert (found.stdout, found.meta) == (b"out", {"exit_code": 0})
    assert not (artifacts / "ex_1").is_symlink()
    assert untouched(outside)
    assert len([name for name in os.listdir(artifacts) if name.startswith(".displaced.ex_1.")]) == 1


def test_the_naive_way_would_have_followed_the_links(artifacts: Path, outside: Path) -> None:
    _directory_of_links(artifacts / "ex_1", outside)
    (artifacts / "ex_1/meta.json").write_bytes(b"{}")
    assert not untouched(outside)


@pytest.mark.parametrize("part", ["artifacts", "."])
def test_a_directory_above_that_became_a_link_is_refused(home: Path, outside: Path, part: str) -> None:
    replaced = home / "workspace/projects/p1" / part
    replaced.rename(home / "away")
    replaced.symlink_to(outside)
    with pytest.raises(PathTraversalError):
        write(home)
    with pytest.raises((PathTraversalError, Unavailable)):
        read_exec_files(home, "p1", "ex_1")
    assert untouched(outside)


@pytest.mark.parametrize("name", OURS)
def test_a_link_in_the_place_of_a_file_of_ours_is_not_read(
    home: Path, artifacts: Path, outside: Path, name: str
) -> None:
    write(home)
    (artifacts / "ex_1" / name).unlink()
    (artifacts / "ex_1" / name).symlink_to(outside / "secret")
    with pytest.raises(RingfenceError) as caught:
        read_exec_files(home, "p1", "ex_1")
    assert SECRET.decode() not in str(caught.value)


def test_a_fifo_in_the_place_of_a_file_of_ours_makes_nobody_wait(home: Path, artifacts: Path) -> None:
    write(home)
    (artifacts / "ex_1/meta.json").unlink()
    os.mkfifo(artifacts / "ex_1/meta.json")
    with pytest.raises(Unavailable):
        read_exec_files(home, "p1", "ex_1")


@pytest.mark.parametrize("path", ["../../../../../outside/secret", "/etc/passwd", "plots/../../secret", "..", ""])
def test_no_path_leads_out_of_the_directory_of_an_execution(home: Path, outside: Path, path: str) -> None:
    write(home)
    assert read_artifact(home, "p1", "ex_1", path) is None
    assert untouched(outside)


def test_an_artifact_that_climbs_is_not_written(home: Path, artifacts: Path) -> None:
    for path in ("../up", "a/../../up", "/abs", "a//b"):
        bad = ExecutionResult(Status.SUCCEEDED, artifacts=(Artifact(path, 1, "0" * 64, b"x"),))
        with pytest.raises(RingfenceError):
            write_exec_files(home, "p1", "ex_1", bad, manifest={}, meta={})
    assert os.listdir(artifacts) == []


def test_removing_old_files_follows_no_link(home: Path, artifacts: Path, outside: Path) -> None:
    write(home)
    (artifacts / "ex_1/plots/link").symlink_to(outside)
    (artifacts / "ex_2").symlink_to(outside)
    (home / "workspace/projects/p2").symlink_to(outside)
    assert prune_exec_files(home, 2**53) == ("ex_1", "ex_2")
    assert os.listdir(artifacts) == []
    assert untouched(outside)


def test_writers_of_one_execution_at_a_time_leave_one_whole_directory(home: Path, artifacts: Path) -> None:
    threads = [threading.Thread(target=write, args=(home,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_exec_files(home, "p1", "ex_1") is not None
    assert [name for name in os.listdir(artifacts) if not name.startswith(".displaced.")] == ["ex_1"]


def test_whatever_the_umask_the_files_are_ours_alone(home: Path, artifacts: Path) -> None:
    before = os.umask(0)
    try:
        write(home)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in (artifacts / "ex_1").rglob("*")} == {0}


@pytest.mark.needs("root")
def test_a_file_of_another_user_in_the_way_stays_what_it_is(home: Path, artifacts: Path) -> None:
    (artifacts / "ex_1").write_bytes(b"theirs")
    os.chown(artifacts / "ex_1", 12345, 12345)
    write(home)
    (aside,) = [artifacts / name for name in os.listdir(artifacts) if name.startswith(".displaced")]
    assert (aside.read_bytes(), aside.stat().st_uid) == (b"theirs", 12345)
