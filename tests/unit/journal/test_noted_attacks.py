"""What is noted, against everything that can happen to its file, its process and its database in between."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.journal_checks import verified
from tests.unit.journal.noting import Process, begun, ended, kept, noted_in, of, slots_of, unhurried

from ringfence.database.sqlite import DATABASE_NAME
from ringfence.errors import RingfenceError, Unavailable
from ringfence.evidence import records

__all__ = ["unhurried"]

pytestmark = pytest.mark.usefixtures("unhurried")

WHOLE = [records.BEGIN, records.END]


def kinds(exec_id: str, home: Path) -> list[str]:
    return [kind for kind, _ in of(exec_id, home)]


def heir_of(home: Path) -> None:
    heir = Process(home)
    asyncio.run(heir.live())
    heir.journal.close()


async def told(process: Process) -> str:
    """Have a run begin and end, both of it only noted."""
    begin = await noted_in(process)
    await process.journal.end(ended(begin))
    exec_id: str = begin["exec_id"]
    return exec_id


def test_an_end_that_was_told_stands_when_only_its_beginning_was_filed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.journal.journal._MOST_AT_ONCE", 1)
    dead = Process(tmp_path)

    async def write() -> str:
        exec_id = await told(dead)
        dead.journal._write_batch(wait_seconds=None)
        assert kinds(exec_id, tmp_path) == [records.BEGIN]
        dead.die()
        return exec_id

    exec_id = asyncio.run(write())
    heir_of(tmp_path)
    assert of(exec_id, tmp_path) == [(records.BEGIN, None), (records.END, "cancelled")]
    assert verified(tmp_path).is_proven


def test_nobody_waits_for_the_disk_of_a_closed_journal(tmp_path: Path) -> None:
    process = Process(tmp_path)
    asyncio.run(process.live())
    process.journal.close()

    async def wait() -> None:
        async with asyncio.timeout(10):
            await process.journal.on_disk()

    asyncio.run(wait())


def test_a_process_that_can_start_no_thread_still_asks_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(tmp_path)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def write() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            async with asyncio.timeout(10):
                await noted_in(process)
        async with asyncio.timeout(10):
            await noted_in(process)

    asyncio.run(write())
    process.journal.close()


def test_a_note_that_the_disk_took_half_of_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path)
    pwrite = os.pwrite

    async def write() -> str:
        await process.live()
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[: len(data) // 2], at))
        begin = begun()
        await process.journal.note(begin)
        exec_id: str = begin["exec_id"]
        return exec_id

    exec_id = asyncio.run(write())
    assert kinds(exec_id, tmp_path) == [records.BEGIN]
    process.die()


def _huge(slots: Path) -> None:
    os.truncate(slots, 1 << 42)


def _short(slots: Path) -> None:
    os.truncate(slots, 100)


def _gone(slots: Path) -> None:
    slots.unlink()


def _endless(slots: Path) -> None:
    slots.unlink()
    slots.symlink_to("/dev/zero")


def _pipe(slots: Path) -> None:
    slots.unlink()
    os.mkfifo(slots)


def _directory(slots: Path) -> None:
    slots.unlink()
    slots.mkdir()


def _moved(slots: Path) -> None:
    slots.rename(slots.with_name("elsewhere"))


def _elsewhere(slots: Path) -> None:
    target = slots.with_name("elsewhere")
    slots.rename(target)
    slots.symlink_to(target)


def _another(slots: Path) -> None:
    slots.unlink()
    slots.write_bytes(bytes(1 << 20))


CHANGES = [_huge, _short, _gone, _endless, _pipe, _directory, _moved, _elsewhere, _another]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_lies_where_the_notes_were_the_next_process_runs(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    dead = Process(tmp_path)
    exec_id = asyncio.run(noted_in(dead))["exec_id"]
    dead.die()
    change(slots_of(tmp_path))
    heir_of(tmp_path)
    assert kinds(exec_id, tmp_path) in ([], WHOLE)
    assert verified(tmp_path).is_proven


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_told_after_the_notes_were_taken_away_is_found_after_a_kill(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    dead = Process(tmp_path)

    async def write() -> str:
        await dead.live()
        change(slots_of(tmp_path))
        exec_id = await told(dead)
        dead.die()
        return exec_id

    exec_id = asyncio.run(write())
    heir_of(tmp_path)
    assert of(exec_id, tmp_path) == [(records.BEGIN, None), (records.END, "cancelled")]


def test_notes_are_never_written_into_a_file_that_was_there_before(tmp_path: Path) -> None:
    asyncio.run(noted_in(dead := Process(tmp_path)))
    dead.die()
    slots = slots_of(tmp_path)
    other = tmp_path / "anything"
    other.write_text("somebody's")
    slots.unlink()
    slots.hardlink_to(other)
    heir_of(tmp_path)
    assert other.read_text() == "somebody's"


@pytest.mark.parametrize("replace", [False, True])
def test_a_database_that_was_taken_away_means_a_refusal(tmp_path: Path, replace: bool) -> None:
    process = Process(tmp_path)
    asyncio.run(process.live())
    for end in ("", "-wal", "-shm"):
        file = tmp_path / f"{DATABASE_NAME}{end}"
        file.rename(tmp_path / f"old{end}")
        if replace:
            file.write_bytes((tmp_path / f"old{end}").read_bytes())

    async def write() -> None:
        begin = begun()
        await process.journal.note(begin)
        await asyncio.sleep(0)
        await process.journal.end(ended(begin))

    for _ in range(2):
        with pytest.raises(Unavailable, match="taken away or replaced"):
            asyncio.run(write())
    with pytest.raises(Unavailable, match="taken away or replaced"):
        process.journal.close()


def test_a_process_that_lost_its_log_loses_and_doubles_nothing(tmp_path: Path) -> None:
    robbed = Process(tmp_path)

    async def write() -> list[str]:
        begin = await noted_in(robbed)
        (tmp_path / f"{DATABASE_NAME}.leases").unlink()  # so that nobody sees that it lives
        heir = Process(tmp_path)
        await heir.live()
        for _ in range(3):
            try:
                await robbed.journal.end(ended(begin))
            except RingfenceError:
                break
        await asyncio.sleep(0)
        names = [begin["exec_id"]]
        for _ in range(3):
            begin = begun()
            try:
                await robbed.journal.note(begin)
                await robbed.journal.end(ended(begin))
            except RingfenceError:
                continue
            names.append(begin["exec_id"])
        heir.journal.close()
        return names

    names = asyncio.run(write())
    robbed.journal.close()
    assert len(names) > 1  # it goes on
    assert [kinds(name, tmp_path) for name in names] == [WHOLE] * len(names)
    assert verified(tmp_path).is_proven


def test_a_forked_child_writes_nothing_of_its_parent(tmp_path: Path) -> None:
    process = Process(tmp_path)

    async def write() -> str:
        exec_id = await told(process)
        if (child := os.fork()) == 0:  # while both stand in line
            os._exit(_in_child(process))
        children.append(child)
        return exec_id

    children: list[int] = []
    exec_id = asyncio.run(write())
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
    asyncio.run(process.live())
    process.journal.close()
    assert kinds(exec_id, tmp_path) == WHOLE
    counted = [record["type"] for record in kept(tmp_path) if "exec_id" in record]
    assert counted.count(records.BEGIN) == counted.count(records.END) == 10
    assert verified(tmp_path).is_proven


def _in_child(process: Process) -> int:
    """Write with what the parent left in the child's memory, as an application that forked would."""
    thread = threading.Thread(target=lambda: asyncio.run(process.live()))
    thread.start()
    thread.join()
    process.journal.close()
    return 0


def test_a_run_is_filed_also_while_the_application_keeps_its_loop_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.journal.disk._OVERDUE_SECONDS", 0.02)
    filed = threading.Event()
    process = Process(tmp_path, on_written=lambda _: filed.set())

    async def write() -> list[str]:
        begin = await noted_in(process)
        filed.clear()
        await process.journal.end(ended(begin))
        filed.wait(30)
        return kinds(begin["exec_id"], tmp_path)

    assert asyncio.run(write()) == WHOLE
    process.journal.close()
