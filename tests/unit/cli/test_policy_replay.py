"""`ringfence policy replay`: past calls under a policy that is not yet in use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.evidence.records import NOW, Archive

from ringfence.errors import InvalidRequest
from ringfence.evidence.described import Record
from ringfence.interfaces.cli.policy_replay import moment, replay_command, replayed
from ringfence.interfaces.cli.usage import UsageError
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsRead

NO_ENV = "policies: {default: {denied_paths: ['**/.env']}}\n"


class Journal:
    """Reads back what the archive holds."""

    def __init__(self, archive: Archive, records: list[dict[str, Any]], *, contents: bool = True) -> None:
        self.archive, self.kept, self._contents = archive, records, contents
        self.asked: tuple[int | None, int | None] | None = None

    def records(self, since_ms: int | None, until_ms: int | None) -> Iterable[Record]:
        self.asked = since_ms, until_ms
        return [each for each in self.kept if since_ms is None or each["time_ms"] >= since_ms]

    def document(self, digest: str) -> str | None:
        return self.archive.documents(digest)

    def content(self, record: Record) -> bytes | None:
        return self.archive.contents.get(record.get("exec_id", "")) if self._contents else None


@pytest.fixture
def journal() -> Journal:
    archive = Archive()
    reads = [archive.record(FsRead(path)) for path in [".env"] * 14 + ["notes.txt"] * 3]
    runs = [archive.record(CodeRun(Language.BASH, "git push"))]
    return Journal(archive, [*reads, *runs, {"type": "exec.end", "time_ms": NOW}])


def written(at: Path, text: str) -> str:
    path = at / "candidate.yaml"
    path.write_text(text)
    return str(path)


def test_calls_that_would_now_be_denied_are_counted_by_rule_and_tool(
    journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay_command(["--policy", written(tmp_path, NO_ENV)], lambda: journal, NOW) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "18 decisions: 4 the same, 14 other, 0 cannot be told"
    assert lines[1].startswith("14 past calls of file_read would now be denied by deny_lists (ex-1, ex-2, ")


def test_a_candidate_that_changes_nothing_passes(
    journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay_command(["--policy", written(tmp_path, "policies: {}"), "--json"], lambda: journal, NOW) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["success"], said["total"], said["same"], said["changes"]) == (True, 18, 18, [])


def test_a_wider_candidate_is_a_change_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ringfence.authority.policy_reader import load_policy

    archive = Archive()
    journal = Journal(archive, [archive.record(FsRead(".env"), load_policy(NO_ENV.encode()))])
    assert replay_command(["--policy", written(tmp_path, "policies: {}")], lambda: journal, NOW) == 1
    assert "1 past call of file_read would now be allowed, where deny_lists refused" in capsys.readouterr().out


def test_what_cannot_be_told_is_said_and_fails_only_where_that_is_asked_for(
    journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(journal.archive, journal.kept, contents=False)
    text = "policies: {}\nrules:\n  - {id: no-push, decision: deny, command: [git, push]}\n"
    words = ["--policy", written(tmp_path, text)]
    assert replay_command(words, lambda: journal, NOW) == 0
    assert "cannot be told: a list or rule looks at the arguments of a program of the script (1)" in (
        capsys.readouterr().out
    )
    assert replay_command([*words, "--strict"], lambda: journal, NOW) == 1


def test_the_contents_answer_where_the_records_do_not(journal: Journal, tmp_path: Path) -> None:
    text = "policies: {}\nrules:\n  - {id: no-push, decision: deny, command: [git, push]}\n"
    assert replay_command(["--policy", written(tmp_path, text)], lambda: journal, NOW) == 1


def test_the_policy_of_then_decides_as_it_did(journal: Journal) -> None:
    found = replayed(journal, None, None, None)
    assert (found.total, found.same) == (18, 18)


def test_no_evidence_is_no_praise(journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--policy", written(tmp_path, NO_ENV), "--since", "1s"]
    assert replay_command(words, lambda: journal, NOW + 5000) == 0
    assert "says nothing about the policy" in capsys.readouterr().out
    assert journal.asked == (NOW + 4000, None)


def test_a_broken_candidate_is_refused_before_any_evidence_is_opened(tmp_path: Path) -> None:
    def never() -> Journal:
        raise AssertionError

    with pytest.raises(InvalidRequest):
        replay_command(["--policy", written(tmp_path, "policies: [")], never, NOW)


def test_a_name_that_a_caller_chose_does_not_drive_the_terminal(
    journal: Journal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = journal.kept[0] | {"exec_id": "\x1b[2Jx\ny"}
    replay_command(["--policy", written(tmp_path, NO_ENV)], lambda: Journal(journal.archive, [record]), NOW)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("7d", NOW - 7 * 86_400_000),
        ("90s", NOW - 90_000),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T01:00Z", 1_699_923_600_000),
        ("2023-11-14T01:00+01:00", 1_699_920_000_000),
    ],
)
def test_a_time_is_an_age_or_a_date(text: str, at: int) -> None:
    assert moment("--since", text, NOW) == at


@pytest.mark.parametrize("text", ["", "yesterday", "7", "-7d", "7y", "2023-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        moment("--since", text, NOW)
