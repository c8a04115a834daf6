"""The four files of an execution and its artifacts: whole, private, described as they are, and gone in time."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.outcome import Artifact, ExecutionResult, Status
from ringfence.workspaces.exec_files import (
    OURS,
    read_artifact,
    read_exec_files,
    stored_path,
    write_exec_files,
)
from ringfence.workspaces.exec_retention import prune_exec_files
from ringfence.workspaces.names import harmless_path, original


def artifact(path: str, content: bytes = b"data") -> Artifact:
    return Artifact(path, len(content), hashlib.sha256(content).hexdigest(), content)


def a_result(*artifacts: Artifact, **changes: Any) -> ExecutionResult:
    return ExecutionResult(
        Status.SUCCEEDED, exit_code=0, stdout_raw=b"out\xff", stdout_bytes=4, artifacts=artifacts, **changes
    )


def write(home: Path, exec_id: str = "ex_1", result: ExecutionResult | None = None, **options: Any) -> Path:
    documents = {"manifest": {"v": 1}, "meta": {"exit_code": 0}}
    path = write_exec_files(home, "p1", exec_id, result or a_result(), **{**documents, **options})
    return home / "workspace" / path


def test_all_four_files_are_there_and_private(tmp_path: Path) -> None:
    directory = write(tmp_path, result=a_result(artifact("plots/a.png")))
    assert directory == tmp_path / "workspace/projects/p1/artifacts/ex_1"
    assert sorted(path.name for path in directory.iterdir()) == sorted([*OURS, "plots"])
    assert (directory / "stdout.txt").read_bytes() == b"out\xff"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (directory, directory / "plots")} == {0o700}


def test_the_manifest_describes_what_lies_there(tmp_path: Path) -> None:
    result = a_result(artifact("plots/a.png"), artifact("meta.json", b"forged"), stderr_truncated=True)
    directory = write(tmp_path, result=result, manifest={"v": 1, "artifacts": ["a lie"]})
    manifest = json.loads((directory / "manifest.json").read_text())
    assert [entry["path"] for entry in manifest["artifacts"]] == ["plots/a.png", "%6Deta.json"]
    for entry in (*manifest["artifacts"], manifest["stdout"], manifest["stderr"]):
        content = (directory / entry["path"]).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (entry["sha256"], entry["size"])
    assert (manifest["stdout"]["truncated"], manifest["stderr"]["truncated"]) == (False, True)
    assert manifest["artifacts"][1]["name"] == "meta.json"


@pytest.mark.parametrize("name", [*OURS, "META.json", "Stdout.TXT", "meta.json/deep"])
def test_a_guest_that_takes_a_name_of_ours_keeps_its_file_and_changes_none_of_ours(tmp_path: Path, name: str) -> None:
    write(tmp_path, result=a_result(artifact(name, b"forged")))
    found = read_exec_files(tmp_path, "p1", "ex_1")
    assert found is not None
    assert (found.stdout, found.stderr, found.meta) == (b"out\xff", b"", {"exit_code": 0})
    assert read_artifact(tmp_path, "p1", "ex_1", name) == b"forged"


@given(st.lists(st.binary(min_size=1, max_size=12).map(lambda raw: raw.replace(b"\0", b"_")), unique=True, max_size=8))
def test_no_two_artifacts_get_the_same_place_and_none_gets_ours(names: list[bytes]) -> None:
    raw = [b"/".join(filter(None, name.split(b"/"))) or b"x" for name in names]
    paths = {harmless_path(name) for name in [*raw, *map(os.fsencode, OURS)]}
    places = {stored_path(path) for path in paths}
    assert len(places) == len(paths)
    assert places.isdisjoint(OURS)
    assert {original(place) for place in places} == {original(path) for path in paths}


def test_names_no_directory_can_hold_are_kept_by_their_digest(tmp_path: Path) -> None:
    names = [harmless_path(b"\xff" * 255), harmless_path(b"\xff" * 254 + b"\xfe"), "/".join(["d" * 200] * 15)]
    write(tmp_path, result=a_result(*(artifact(name, name.encode()[-4:]) for name in names)))
    assert [read_artifact(tmp_path, "p1", "ex_1", name) for name in names] == [name.encode()[-4:] for name in names]


def test_what_was_never_kept_is_not_there(tmp_path: Path) -> None:
    assert read_exec_files(tmp_path / "none", "p1", "ex_1") is None
    write(tmp_path)
    assert read_exec_files(tmp_path, "p1", "ex_2") is None
    assert read_exec_files(tmp_path, "p2", "ex_1") is None
    assert read_artifact(tmp_path, "p1", "ex_1", "nothing") is None


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: _full() if bytes(data) == b"last" else real(fd, data))
    with pytest.raises(QuotaExceeded):
        write(tmp_path, result=a_result(artifact("a"), artifact("b", b"last")))
    assert os.listdir(tmp_path / "workspace/projects/p1/artifacts") == []


def _full() -> int:
    raise OSError(28, "No space left on device")


def test_more_than_allowed_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(QuotaExceeded):
        write(tmp_path, result=a_result(artifact("a", b"x" * 5000)), max_bytes=4096)
    assert not (tmp_path / "workspace").exists()
    with pytest.raises(QuotaExceeded):
        write(tmp_path, keep_free_bytes=2**62)
    assert os.listdir(tmp_path / "workspace/projects/p1/artifacts") == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", ".hidden", "x" * 200, "a\n", "a\0"])
def test_only_plain_names_are_ids(tmp_path: Path, name: str) -> None:
    for project, exec_id in (("p1", name), (name, "ex_1")):
        with pytest.raises(InvalidRequest):
            write_exec_files(tmp_path, project, exec_id, a_result(), manifest={}, meta={})
        with pytest.raises(InvalidRequest):
            read_exec_files(tmp_path, project, exec_id)


@pytest.mark.parametrize("name", OURS)
def test_what_was_altered_is_not_given_out_as_what_was_written(tmp_path: Path, name: str) -> None:
    directory = write(tmp_path)
    (directory / name).write_bytes(b"[1]")
    with pytest.raises(Unavailable) as caught:
        read_exec_files(tmp_path, "p1", "ex_1")
    assert caught.value.reason == "damaged"


def test_old_files_go_and_held_ones_stay(tmp_path: Path) -> None:
    for exec_id in ("ex_old", "ex_held", "ex_new"):
        directory = write(tmp_path, exec_id)
        age = 5_000 if exec_id == "ex_new" else 1_000
        os.utime(directory, (age, age))
    artifacts = tmp_path / "workspace/projects/p1/artifacts"
    for left in (".ex_old.0123", ".displaced.ex_held.0123"):
        (artifacts / left).mkdir()
        os.utime(artifacts / left, (1_000, 1_000))
    assert prune_exec_files(tmp_path, 2_000_000, held="ex_held".__eq__) == ("ex_old",)
    assert sorted(os.listdir(artifacts)) == [".displaced.ex_held.0123", "ex_held", "ex_new"]
    assert prune_exec_files(tmp_path / "none", 2_000_000) == ()


def test_a_caller_can_choose_not_to_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write(tmp_path, "ex_1", durable=False)
    assert synced == []
    write(tmp_path, "ex_2")
    assert len(synced) == len(OURS) + 2
