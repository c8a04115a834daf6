from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.errors import QuotaExceeded
from ringfence.outcome import Artifact, ExecutionResult, Status
from ringfence.workspaces import artifact_quota
from ringfence.workspaces.exec_files import read_exec_files, write_exec_files
from ringfence.workspaces.exec_retention import prune_exec_files


def keep(home: Path, exec_id: str, size: int = 1000) -> None:
    artifact = Artifact(path="a", size=size, sha256="0" * 64, content=b"x" * size)
    result = ExecutionResult(status=Status.SUCCEEDED, exit_code=0, artifacts=(artifact,))
    write_exec_files(home, "p", exec_id, result, manifest={}, meta={}, durable=False)


def test_what_all_runs_of_a_project_keep_together_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_quota, "MOST_PROJECT_BYTES", 10_000)
    keep(tmp_path, "ex_1")
    keep(tmp_path, "ex_2")
    with pytest.raises(QuotaExceeded) as refused:
        keep(tmp_path, "ex_3", 9000)
    assert (refused.value.reason, refused.value.answer.http_status) == ("project_artifacts", 429)
    assert read_exec_files(tmp_path, "p", "ex_3") is None
    keep(tmp_path, "ex_4")  # what was refused took no room


def test_pruning_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_quota, "MOST_PROJECT_BYTES", 4000)
    keep(tmp_path, "ex_1", 2000)
    with pytest.raises(QuotaExceeded):
        keep(tmp_path, "ex_2", 2000)
    assert prune_exec_files(tmp_path, 2**50) == ("ex_1",)
    keep(tmp_path, "ex_2", 2000)


@pytest.mark.parametrize("spoiled", [None, b"many", b"1", b""])
def test_a_count_that_was_lost_or_spoiled_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: bytes | None
) -> None:
    monkeypatch.setattr(artifact_quota, "MOST_PROJECT_FILES", 13)
    keep(tmp_path, "ex_1")
    usage = tmp_path / "workspace/projects/p/artifacts-usage"
    assert int(usage.read_bytes().split()[1]) == 6
    usage.unlink() if spoiled is None else usage.write_bytes(spoiled)
    keep(tmp_path, "ex_2")
    assert int(usage.read_bytes().split()[1]) == 12
    with pytest.raises(QuotaExceeded):
        keep(tmp_path, "ex_3")


def test_files_that_cannot_be_written_give_their_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, "ex_1")
    usage = tmp_path / "workspace/projects/p/artifacts-usage"
    before = usage.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("ringfence.workspaces.exec_files._fill", full)
    with pytest.raises(QuotaExceeded):
        keep(tmp_path, "ex_2")
    assert usage.read_bytes() == before
