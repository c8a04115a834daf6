"""A policy file may change at any time: new calls see it at once, running ones do not, a broken one changes nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringfence.authority.levels import ApprovalMode
from ringfence.authority.policy_source import PolicySource
from ringfence.errors import InvalidRequest, RingfenceError
from ringfence.stores.policy_file import PolicyFile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("mode: ask\n")
    return path


def test_a_change_counts_from_the_next_call_on_and_a_running_one_keeps_its_own(file: Path) -> None:
    source = PolicySource(PolicyFile(file))
    running = source.current()
    file.write_text("mode: auto\n")
    assert source.current().policy.mode is ApprovalMode.AUTO
    assert running.policy.mode is ApprovalMode.ASK
    assert source.problem is None


def test_a_replaced_file_counts_too(file: Path, tmp_path: Path) -> None:
    source = PolicySource(PolicyFile(file))
    other = tmp_path / "new"
    other.write_text("mode: auto\n")
    os.replace(other, file)
    assert source.current().policy.mode is ApprovalMode.AUTO


def test_a_change_that_the_file_system_does_not_show_counts(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same length, within one tick of a coarse clock: every number `stat` returns is the same."""
    source = PolicySource(PolicyFile(file))
    before = file.stat()
    file.write_text("mode: auto"[: before.st_size])
    monkeypatch.setattr(Path, "stat", lambda *_, **__: before)
    assert source.current().policy.mode is ApprovalMode.AUTO


@pytest.mark.parametrize(
    "broken",
    [
        "mode: maybe\n",
        "mode: [\n",
        "",
        "# all of it is gone\n",
        "policies:\n",
        "policies: {agent_roles: {a: {inherits: a}}}\n",
    ],
)
def test_a_broken_file_changes_nothing_and_says_so_once(file: Path, broken: str) -> None:
    told: list[RingfenceError] = []
    source = PolicySource(PolicyFile(file), on_problem=told.append)
    good = source.current()
    file.write_text(broken)
    assert [source.current() for _ in range(3)] == [good] * 3
    assert source.current() is good
    assert source.problem is not None
    assert (source.problem.reason, source.problem.details["line"]) == ("invalid_policy", told[0].details["line"])
    assert len(told) == 1
    file.write_text("mode: auto\n")
    assert source.current().policy.mode is ApprovalMode.AUTO
    assert source.problem is None


def test_a_file_that_is_gone_changes_nothing_and_says_so(file: Path) -> None:
    source = PolicySource(PolicyFile(file))
    good = source.current()
    file.rename(file.with_name("elsewhere"))
    assert source.current() is good
    assert source.problem is not None
    assert source.problem.reason == "policy_unreadable"
    file.with_name("elsewhere").rename(file)
    assert source.current() is good
    assert source.problem is None


def test_there_is_no_going_on_without_a_first_good_policy(file: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        PolicySource(PolicyFile(tmp_path / "nothing"))
    file.write_text("mode: maybe\n")
    with pytest.raises(InvalidRequest) as refused:
        PolicySource(PolicyFile(file))
    assert refused.value.details["line"] == 1


def test_a_file_that_was_only_touched_keeps_what_was_worked_out(file: Path) -> None:
    source = PolicySource(PolicyFile(file))
    before = source.current()
    os.utime(file)
    assert source.current() is before


def test_a_settled_file_is_looked_at_and_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PolicyFile(file)
    monkeypatch.setattr("ringfence.stores.policy_file.time.time_ns", lambda: 2**62)
    source = PolicySource(text)
    monkeypatch.setattr(text, "read", lambda: pytest.fail("read again"))
    assert source.current() is source.current()


def test_a_text_that_never_holds_still_is_refused() -> None:
    class Restless:
        name = "restless"
        alone = threading.Lock()
        count = 0

        def stamp(self) -> int:
            self.count += 1
            return self.count

        def read(self) -> bytes:
            return b"mode: ask\n"

        def is_being_written(self) -> bool:
            return False

    with pytest.raises(InvalidRequest, match="changes faster"):
        PolicySource(Restless())


def test_callers_of_many_threads_never_see_half_a_policy(file: Path) -> None:
    source = PolicySource(PolicyFile(file))

    def look(turn: int) -> str:
        if turn % 10 == 0:
            other = file.with_name(f"new-{turn}")
            other.write_text(f"mode: {'ask' if turn % 20 else 'auto'}\n")
            os.replace(other, file)
        return str(source.current().policy.mode)

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(look, range(200))) <= {"ask", "auto"}
    file.write_text("mode: cowork\n")
    assert source.current().policy.mode is ApprovalMode.COWORK


def test_of_two_who_look_at_once_the_slower_does_not_put_an_older_policy_back() -> None:
    """What a call was judged by is not forgotten because another was about to read what is broken."""
    judged_by: list[ApprovalMode] = []

    class Changing:
        name = "changing"
        alone = threading.Lock()
        number = 0

        def stamp(self) -> int:
            return self.number

        def read(self) -> bytes:
            is_slower = threading.current_thread() is threading.main_thread()
            if self.number == 2 and is_slower and other.ident is None:
                self.number = 1
                other.start()
                other.join(0.2)  # where both may look at the same time, it is done by now
                self.number = 2
            return (b"mode: ask\n", b"mode: auto\n", b"mode: maybe\n")[self.number]

        def is_being_written(self) -> bool:
            return False

    text = Changing()
    source = PolicySource(text)
    other = threading.Thread(target=lambda: judged_by.append(source.current().policy.mode))
    text.number = 2
    source.current()
    other.join()
    assert [source.current().policy.mode] == judged_by


def test_half_a_file_is_not_read_while_somebody_has_it_open_for_writing(file: Path) -> None:
    source = PolicySource(PolicyFile(file))
    good = source.current()
    with file.open("w") as writing:
        writing.write("policies: {}\n")
        writing.flush()
        assert source.current() is good
        assert source.problem is not None
        assert "open for writing" in str(source.problem)
        writing.write("mode: auto\n")
    assert source.current().policy.mode is ApprovalMode.AUTO
    assert source.problem is None


def test_half_a_file_is_not_taken_where_its_writer_is_done_just_after_it_was_read() -> None:
    class Written:
        name = "written"
        alone = threading.Lock()
        texts: tuple[bytes, ...] = (b"mode: cowork\n",)

        def stamp(self) -> bytes:
            return self.texts[-1]

        def read(self) -> bytes:
            return self.texts[-1]

        def is_being_written(self) -> bool:
            """Say so when the writer has just finished."""
            self.texts = (*self.texts, b"mode: ask\npolicies: {tools: {code_run: {max_memory: 1GB}}}\n")
            return False

    text = Written()
    source = PolicySource(text)
    text.texts = (*text.texts, b"mode: ask\n")  # without what comes after it
    assert source.current().text == text.texts[-1]


def test_a_file_that_whoever_wrote_it_has_not_closed_is_a_policy_when_it_is_named(file: Path) -> None:
    with file.open("w") as writing:  # as a named temporary file is
        writing.write("mode: auto\n")
        writing.flush()
        source = PolicySource(PolicyFile(file))
        assert source.current().policy.mode is ApprovalMode.AUTO
        assert source.problem is None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_what_is_no_plain_file_changes_nothing_and_holds_nobody_up(file: Path, make: Callable[[Path], None]) -> None:
    source = PolicySource(PolicyFile(file))
    good = source.current()
    file.unlink()
    make(file)
    assert source.current() is good
    assert source.problem is not None
    assert source.problem.reason == "policy_unreadable"


def test_a_file_that_claims_to_be_of_the_future_is_read_all_the_same(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time of modification is for anybody to set: of the same size, in the same tick, only its bytes tell."""
    os.utime(file, ns=(2**61, 2**61))
    source = PolicySource(PolicyFile(file))
    before = file.stat()
    file.write_text("mode: auto"[: before.st_size])
    monkeypatch.setattr(Path, "stat", lambda *_, **__: before)
    assert source.current().policy.mode is ApprovalMode.AUTO
