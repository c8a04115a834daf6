"""What cannot be kept of a run is said, and the run stays what it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun, Language
from ringfence.outcome import ExecutionResult, Status
from ringfence.stores.keepsakes import Keepsakes
from ringfence.workspaces import exec_files

BEGUN = {"exec_id": "ex-1", "project_id": "p", "tenant": "local"}


async def test_a_project_that_has_no_place_for_files_is_said_and_no_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen red: a `KeyError` for the place that nobody had named yet."""

    def nowhere(*_: object) -> str:
        raise InvalidRequest("no such project", reason="invalid_name")

    monkeypatch.setattr(exec_files, "artifacts_path", nowhere)
    ended: dict[str, object] = {}
    keep = Keepsakes(tmp_path, lambda: None)
    outcome = await keep(BEGUN, ended, CodeRun(Language.PYTHON, "1"), ExecutionResult(Status.SUCCEEDED))
    assert isinstance(outcome, ExecutionResult)
    assert (ended, outcome.notes) == ({"not_kept": ["files: invalid_name"]}, ("not kept: files: invalid_name",))
