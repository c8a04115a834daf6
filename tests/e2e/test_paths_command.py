"""`ringfence paths`, by its own door; on Windows and on WSL it has been run by nobody here."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ringfence.interfaces.cli.main import main
from ringfence.paths.adapter import Side
from ringfence.paths.machine import ask_wslpath


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["paths", "--json", *words]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_on_windows_no_path_is_one_of_wsl(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    home = str(tmp_path)
    answer = told(capsys, "--env", "windows", "--root-win", "d:\\agents", "--project", "p1", "--home", home)
    assert answer["env"] == "windows"
    assert answer["paths"]["work"]["docker_mount_path"] == "D:/agents/workspace/projects/p1/work"
    shown = [path[key] for path in answer["paths"].values() for key in ("host_path_native", "docker_mount_path")]
    assert [path for path in shown if path.startswith("/")] == []


def test_on_wsl_no_path_has_a_drive_letter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[sandbox]\nworkspace_root_wsl = "/mnt/d/agents"\n')
    answer = told(capsys, "--env", "wsl", "--project", "p1", "--home", str(tmp_path))
    shown = [path[key] for path in answer["paths"].values() for key in ("host_path_native", "docker_mount_path")]
    assert answer["paths"]["inputs"]["host_path_native"] == "/mnt/d/agents/workspace/projects/p1/inputs"
    assert [path for path in shown if ":" in path or "\\" in path] == []


def test_on_this_machine_the_path_is_looked_at(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = told(capsys, "--home", str(tmp_path))
    assert answer["paths"]["root"] == {
        "host_path_native": str(tmp_path),
        "docker_mount_path": str(tmp_path),
        "writable": "yes",
    }
    Path(answer["paths"]["root"]["host_path_native"], "written").write_text("so it is")


def test_a_root_that_is_missing_is_asked_of_wslpath(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "wslpath"
    program.write_text('#!/bin/sh\n[ "$1" = -u ] && echo /drives/d/agents\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer = told(capsys, "--env", "wsl", "--root-win", "D:\\agents", "--home", str(tmp_path))
    assert answer["paths"]["root"]["docker_mount_path"] == "/drives/d/agents"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert ask_wslpath("D:\\agents", Side.WSL) is None


def test_a_root_that_nobody_knows_is_an_error_with_the_key_to_set(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["paths", "--env", "windows", "--home", str(tmp_path)]) == 2
    line = capsys.readouterr().err
    assert "sandbox.workspace_root_win is not set" in line
    assert "Fix: set it, as in" in line
