"""The command lines of `ringfence evidence` that mean nothing, and the small parts of `verify`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli.evidence_verify import Progress, read_notes
from ringfence.interfaces.cli.main import main

NOTE = "ringfence/lg_1\n2\nVsqM7giJq/AbUc96mhCwnXHjumBVjtlOyAuQkFmRAb4=\ntime 1\n\n\u2014 ringfence/b749f1b0 8MGkzA==\n"
OTHER = NOTE.replace("lg_1", "lg_2")


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "usage"),
        (["nothing"], "usage"),
        (["show"], "usage"),
        (["show", "a", "--audit", "--public"], "usage"),
        (["export"], "usage"),
        (["export", "--format", "xml"], "usage"),
        (["export", "--format", "log", "--task", "T-7"], "usage"),
        (["export", "--format", "log", "--exec", "a"], "usage"),
        (["export", "--format", "bundle", "--exec", "a", "--task", "T-7"], "usage"),
        (["replay", "--level", "reexecute"], "usage"),
        (["replay", "a", "--task", "T-7"], "usage"),
        (["replay", "--level", "simulate", "--policy", "p"], "usage"),
        (["replay", "--policy", "/nonexistent"], "policy_unreadable"),
        (["report", "--unused-rules"], "usage"),
        (["report", "--policy", "p"], "usage"),
        (["hold"], "usage"),
        (["hold", "add", "task_id"], "usage"),
        (["hold", "add", "shoe_size=44"], "usage"),
        (["hold", "add", "task_id=T-7"], "not_found"),
        (["prune", "--yes"], "usage"),
        (["prune", "--older-than", "soon", "--yes"], "usage"),
        (["prune", "--older-than", "9999-01-01", "--yes"], "usage"),
        (["content"], "usage"),
        (["content", "forget"], "usage"),
        (["list", "--limit", "0"], "usage"),
        (["list", "--cursor", "x"], "invalid_range"),
        (["list"], "not_found"),
        (["verify"], "not_found"),
        (["verify", "/nonexistent/file"], "unreadable"),
        (["verify", "/"], "unreadable"),
        (["verify", "--key", "nonsense"], "bad_note"),
        (["verify", "--checkpoint", "/dev/null"], "unreadable"),
        (["document", "c9"], "invalid_value"),
        (["document", "0" * 64], "not_found"),
        (["checkpoint"], "not_found"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_a_code_and_a_reason(
    words: list[str], reason: str, nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evidence", *words]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert re.match(rf"ringfence: SCHEMA\.VALIDATION_FAILED {reason}: ", shown.err)
    assert not nowhere.exists()


def test_where_nothing_was_signed_there_is_no_key_to_hand_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "key"]) == 7
    assert "no_signing_key" in capsys.readouterr().err


def test_the_built_in_policy_is_known_everywhere(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from ringfence.authority.policy import BUILT_IN

    assert main(["policy", "show", "--hash", BUILT_IN.policy_version_hash]) == 0
    assert capfdbinary.readouterr().out == BUILT_IN.text


# --- checkpoints in a file ---


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_notes_are_read_one_after_the_other_as_they_were_printed(between: str, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text(between.join([NOTE, OTHER, NOTE]))
    assert [*read_notes(file)] == [NOTE, OTHER, NOTE]


def test_a_note_may_have_been_signed_by_several(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    witnessed = NOTE + "\u2014 witness 8MGkzA==\n"
    file.write_text(witnessed + "\n" + OTHER)
    assert [*read_notes(file)] == [witnessed, OTHER]


@pytest.mark.parametrize(
    "content", [b"", b"\n", NOTE.encode()[:-80], b"\xff", NOTE.encode() + b"text without signature\n"]
)
def test_what_is_no_note_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest):
        _ = [*read_notes(file)]


# --- progress ---


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_counts_over_all_logs_and_leaves_the_terminal_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    progress = Progress(quiet=False)
    for records in (10_000, 20_000, 10_000):
        progress(records)
    progress.end()
    assert "\r30,000 records verified" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress_is_for_a_person_at_a_terminal(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = stream()
    monkeypatch.setattr(sys, "stderr", quiet)
    progress = Progress(quiet=stream is Terminal)
    progress(10_000)
    progress.end()
    assert quiet.getvalue() == ""
