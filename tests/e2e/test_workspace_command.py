"""`ringfence workspace` as a person uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.command_line import ringfence, said, told

pytestmark = pytest.mark.needs("native")


def test_look_keep_damage_go_back_start_over(tmp_path: Path) -> None:
    said(tmp_path, "shell", "--project", "demo", "--", "printf 'one\\ntwo\\n' > a.txt; mkdir d; touch d/empty")
    assert said(tmp_path, "workspace", "ls") == "demo\n"
    assert said(tmp_path, "workspace", "ls", "demo").splitlines() == [
        "file                  8  a.txt",
        "directory             0  d",
    ]
    kept = told(tmp_path, "workspace", "snapshot", "demo", "--label", "before")
    said(tmp_path, "shell", "--project", "demo", "--", "echo three >> a.txt; rm -r d; printf '\\033[31m' > evil")
    shown = said(tmp_path, "workspace", "diff", "demo", "--since", kept["snapshot_id"])
    assert "\x1b" not in shown
    assert shown.splitlines()[:4] == ["M a.txt", "D d", "D d/empty", "A evil"]
    assert "+three" in shown.splitlines()
    restored = said(tmp_path, "workspace", "restore", "demo", kept["snapshot_id"], "--keep")
    assert restored.startswith(f"restored {kept['snapshot_id']}; what was there is kept as snap_")
    assert said(tmp_path, "shell", "--project", "demo", "--", "cat a.txt; ls d") == "one\ntwo\nempty\n"
    assert said(tmp_path, "workspace", "reset", "demo") == "the work directory is empty\n"
    listed = said(tmp_path, "workspace", "snapshots", "demo").splitlines()
    assert [line.rpartition("  ")[2] for line in listed] == ["before", "before restore"]
    assert "2 files, 8 bytes, 8 added" in listed[0]
    assert said(tmp_path, "workspace", "delete", "demo", kept["snapshot_id"]).startswith(
        f"{kept['snapshot_id']} is gone"
    )
    assert said(tmp_path, "workspace", "ls", "demo") == ""


@pytest.mark.parametrize(
    ("words", "said_so"),
    [
        (("diff",), "diff needs a project"),
        (("restore", "demo"), "restore needs a snapshot"),
        (("reset", "demo", "x"), "nothing after it"),
        (("ls", "demo", "--label", "x"), "--label is for snapshot"),
        (("ls", "nobody"), "there is no such project"),
        (("diff", "../demo"), "there is no such project"),
        (("restore", "demo", "snap_x"), "snapshot_id must be the id of a snapshot"),
        (("restore", "demo", "snap_" + "0" * 32), "there is no such snapshot"),
        (("snapshot", "demo", "--label", "\x1b[31m"), "label must be at most 200 printable characters"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path: Path, words: tuple[str, ...], said_so: str) -> None:
    said(tmp_path, "shell", "--project", "demo", "--", "true")
    done = ringfence(tmp_path, "workspace", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert said_so in done.stderr
    assert not (tmp_path / "workspace/projects/nobody").exists()
