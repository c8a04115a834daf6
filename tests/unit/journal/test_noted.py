"""What is noted before it is filed: nothing of it is lost with its process, and nobody else can add to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.journal_checks import verified
from tests.unit.journal.noting import Process, begun, ended, kept, noted_in, of, slots_of, unhurried

from ringfence.database.sqlite import DATABASE_NAME
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence import records
from ringfence.journal.signer import Signer

__all__ = ["unhurried"]

pytestmark = pytest.mark.usefixtures("unhurried")


def test_what_is_noted_is_filed_with_its_end_in_one_transaction(tmp_path: Path) -> None:
    process = Process(tmp_path)

    async def write() -> str:
        begin = await noted_in(process)
        exec_id: str = begin["exec_id"]
        assert of(exec_id, tmp_path) == []
        await process.journal.end(ended(begin))
        return exec_id

    exec_id = asyncio.run(write())
    assert [kind for kind, _ in of(exec_id, tmp_path)] == [records.BEGIN, records.END]
    process.journal.close()
    assert list(tmp_path.glob("*.begun-*")) == []
    assert verified(tmp_path).is_proven


def test_what_was_noted_by_a_process_that_died_is_filed_and_ended_as_orphaned(tmp_path: Path) -> None:
    dead = Process(tmp_path)
    exec_id = asyncio.run(noted_in(dead))["exec_id"]
    dead.die()
    assert of(exec_id, tmp_path) == []
    heir = Process(tmp_path)
    asyncio.run(heir.live())
    heir.journal.close()
    assert of(exec_id, tmp_path) == [(records.BEGIN, None), (records.END, "orphaned")]
    assert verified(tmp_path).is_proven


def test_what_was_filed_before_the_process_died_is_not_filed_again(tmp_path: Path) -> None:
    dead = Process(tmp_path)

    async def write() -> str:
        begin = await noted_in(dead)
        await dead.journal.end(ended(begin))
        exec_id: str = begin["exec_id"]
        return exec_id

    exec_id = asyncio.run(write())
    dead.die()  # its slot still says so
    for _ in range(2):
        heir = Process(tmp_path)
        asyncio.run(heir.live())
        heir.die()
    assert [kind for kind, _ in of(exec_id, tmp_path)] == [records.BEGIN, records.END]


def test_an_end_that_was_only_noted_by_a_process_that_died_is_filed(tmp_path: Path) -> None:
    dead = Process(tmp_path)

    async def write() -> tuple[str, str]:
        begin = await noted_in(dead)
        await dead.journal.end(ended(begin))  # its result may be told
        assert of(begin["exec_id"], tmp_path) == []
        dead.die()
        return begin["exec_id"], "cancelled"

    exec_id, reason = asyncio.run(write())
    heir = Process(tmp_path)
    asyncio.run(heir.live())
    heir.journal.close()
    assert of(exec_id, tmp_path) == [(records.BEGIN, None), (records.END, reason)]
    assert verified(tmp_path).is_proven


def test_the_end_of_an_older_run_is_not_that_of_the_next_one_in_its_slot(tmp_path: Path) -> None:
    dead = Process(tmp_path)

    async def write() -> list[str]:
        await dead.live()
        names = []
        for _ in range(64 + 1):
            begin = begun()
            await dead.journal.note(begin)
            await dead.journal.on_disk()
            names.append(begin["exec_id"])
            if len(names) <= 64:
                await dead.journal.end(ended(begin))
                await asyncio.sleep(0)
                await dead.journal.on_disk()
        return names

    names = asyncio.run(write())
    dead.die()
    heir = Process(tmp_path)
    asyncio.run(heir.live())
    heir.journal.close()
    assert [of(name, tmp_path)[1:] for name in names] == [[(records.END, "cancelled")]] * 64 + [
        [(records.END, "orphaned")]
    ]


def test_what_is_filed_and_on_the_disk_is_no_longer_noted(tmp_path: Path) -> None:
    process = Process(tmp_path)

    async def write() -> str:
        begin = await noted_in(process)
        await process.journal.end(ended(begin))
        await asyncio.sleep(0)
        await process.journal.on_disk()
        exec_id: str = begin["exec_id"]
        return exec_id

    exec_id = asyncio.run(write())
    with process.database.transaction() as cursor:  # as if it had been pruned since
        cursor.execute("DELETE FROM journal_exec WHERE exec_id = ?", (exec_id,))
    process.die()
    heir = Process(tmp_path)
    asyncio.run(heir.live())
    heir.journal.close()
    assert [kind for kind, _ in of(exec_id, tmp_path)] == [records.BEGIN, records.END]


def test_a_slot_is_not_written_again_before_the_disk_has_what_was_filed_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(tmp_path)
    let = threading.Event()

    async def write() -> int:
        begin = await noted_in(process)
        sync = process.database.sync
        monkeypatch.setattr(process.database, "sync", lambda: (let.wait(), sync()))
        await process.journal.end(ended(begin))
        await asyncio.sleep(0)
        assert [kind for kind, _ in of(begin["exec_id"], tmp_path)] == [records.BEGIN, records.END]
        await process.journal.note(begun())
        return slots_of(tmp_path).read_bytes().count(begin["exec_id"].encode())

    assert asyncio.run(write()) > 0
    let.set()
    process.journal.close()


def test_a_file_that_somebody_holds_is_seen_before_a_result_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(tmp_path)
    monkeypatch.setattr(process.database, "_wait_seconds", 0.05)

    async def write() -> None:
        await process.live()
        with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as other:
            other.execute("BEGIN IMMEDIATE")
            begin = begun()
            await process.journal.note(begin)
            await asyncio.sleep(0)
            with pytest.raises(Unavailable, match="held by somebody else"):
                await process.journal.end(ended(begin))

    asyncio.run(write())
    process.journal.close()


def test_a_run_that_lasts_is_found_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.journal.journal._A_MOMENT", 0.0)
    filed = asyncio.Event()

    async def write() -> str:
        loop = asyncio.get_running_loop()
        process = Process(tmp_path, on_written=lambda _: loop.call_soon_threadsafe(filed.set))
        begin = await noted_in(process)
        exec_id: str = begin["exec_id"]
        while not of(exec_id, tmp_path):
            filed.clear()
            await filed.wait()
        await process.journal.end(ended(begin))
        process.journal.close()
        return exec_id

    exec_id = asyncio.run(write())
    assert [kind for kind, _ in of(exec_id, tmp_path)] == [records.BEGIN, records.END]


def _forged(line: bytes) -> bytes:
    mac, _, text = line.partition(b" ")
    term, brace, said = text.partition(b"{")
    forged = json.loads(brace + said) | {"exec_id": "ex_forged"}
    return mac + b" " + term + json.dumps(forged, sort_keys=True, separators=(",", ":")).encode()


def _torn(line: bytes) -> bytes:
    return line[: len(line) // 2]


def _unsigned(line: bytes) -> bytes:
    return b"zz " + line.partition(b" ")[2]


@pytest.mark.parametrize("change", [_forged, _torn, _unsigned, lambda _: b"", lambda _: b"\xff" * 9000])
def test_nobody_without_the_key_adds_a_beginning(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    dead = Process(tmp_path)
    exec_id = asyncio.run(noted_in(dead))["exec_id"]
    dead.die()
    slots = slots_of(tmp_path)
    kept_slots = slots.read_bytes()
    at = kept_slots.index(exec_id.encode()) // 8192 * 8192
    line = kept_slots[at : at + 8192].partition(b"\n")[0]
    slots.write_bytes(kept_slots[:at] + change(line).ljust(8192, b"\0")[:8192] + kept_slots[at + 8192 :])
    heir = Process(tmp_path)
    asyncio.run(heir.live())
    heir.journal.close()
    assert of(exec_id, tmp_path) == []
    assert of("ex_forged", tmp_path) == []
    assert verified(tmp_path).is_proven


def test_an_old_note_is_not_filed_in_a_later_term(tmp_path: Path) -> None:
    dead = Process(tmp_path)
    exec_id = asyncio.run(noted_in(dead))["exec_id"]
    dead.die()
    slots = slots_of(tmp_path)
    old = slots.read_bytes()
    slots.write_bytes(b"")  # as if it had never been noted
    heir = Process(tmp_path)
    asyncio.run(heir.live())
    heir.die()
    slots.write_bytes(old)  # and somebody brings it back
    last = Process(tmp_path)
    asyncio.run(last.live())
    last.journal.close()
    assert of(exec_id, tmp_path) == []


@contextlib.asynccontextmanager
async def unwritable(process: Process, how: Any, *, is_seen: bool) -> AsyncIterator[None]:
    """Have every transaction of a process fail, which it may or may not see while a run goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process.database, "transaction", how)
        if is_seen:
            process.journal._is_free = False
        with pytest.raises(Unavailable) if is_seen else contextlib.nullcontext():
            yield
        await asyncio.sleep(0)  # what was only noted is to be filed now
        with pytest.raises(Unavailable):  # and nothing else begins before it is
            await process.journal.note(begun())


@pytest.mark.parametrize("is_seen", [True, False])
def test_what_happened_is_owed_with_its_beginning_while_nothing_can_be_written(tmp_path: Path, is_seen: bool) -> None:
    process = Process(tmp_path)

    async def write() -> str:
        begin = await noted_in(process)
        async with unwritable(process, _refusing, is_seen=is_seen):
            await process.journal.end(ended(begin))
        await process.live()
        exec_id: str = begin["exec_id"]
        return exec_id

    exec_id = asyncio.run(write())
    process.journal.close()
    assert [kind for kind, _ in of(exec_id, tmp_path)] == [records.BEGIN, records.END]


def _refusing(_wait: float | None = None, *, on_disk: bool = True) -> Any:
    raise Unavailable(f"no, whether {on_disk} or not")


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_transaction_that_was_kept_after_all_is_not_written_twice(tmp_path: Path, is_seen: bool) -> None:
    process = Process(tmp_path)
    transaction = process.database.transaction

    @contextlib.contextmanager
    def kept_and_denied(wait: float | None = None, *, on_disk: bool = True) -> Any:
        with transaction(wait, on_disk=on_disk) as cursor:
            yield cursor
        raise Unavailable("the answer was lost")

    async def write() -> str:
        begin = await noted_in(process)
        async with unwritable(process, kept_and_denied, is_seen=is_seen):
            await process.journal.end(ended(begin))
        await process.live()
        exec_id: str = begin["exec_id"]
        return exec_id

    exec_id = asyncio.run(write())
    process.journal.close()
    assert [kind for kind, _ in of(exec_id, tmp_path)] == [records.BEGIN, records.END]
    assert verified(tmp_path).is_proven


def test_more_beginnings_than_slots_are_filed_at_once(tmp_path: Path) -> None:
    process = Process(tmp_path)
    runs = [begun() for _ in range(70)]

    async def write() -> None:
        await process.live()
        for begin in runs:
            await process.journal.note(begin)
        large = begun(note="x" * 9000)
        await process.journal.note(large)
        assert len(kept(tmp_path)) == 6 + 70 - 64 + 1
        await asyncio.gather(*(process.journal.end(ended(begin)) for begin in (*runs, large)))

    asyncio.run(write())
    process.journal.close()
    assert len(kept(tmp_path)) == 6 + 2 * 71


def test_what_has_no_canonical_form_is_refused_before_anything_runs(tmp_path: Path) -> None:
    process = Process(tmp_path)

    async def write() -> None:
        await process.live()
        with pytest.raises(InvalidRequest):
            await process.journal.note(begun(share=0.5))

    asyncio.run(write())
    process.journal.close()


def test_a_disk_that_failed_once_is_not_believed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(tmp_path)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    async def write() -> None:
        await process.live()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            await process.journal.note(begun())
            with pytest.raises(Unavailable, match="Input/output error"):
                await process.journal.on_disk()
        # a disk says so once; the next time all seems well
        with pytest.raises(Unavailable, match="Input/output error"):
            await process.journal.on_disk()

    asyncio.run(write())
    process.die()


def test_a_forked_child_leaves_the_notes_of_its_parent_alone(tmp_path: Path) -> None:
    process = Process(tmp_path)
    begin = asyncio.run(noted_in(process))
    before = slots_of(tmp_path).read_bytes()
    child = os.fork()
    if child == 0:
        noted = process.journal._noted
        os._exit(0 if noted is not None and not noted.note(begun(), Signer.in_home(tmp_path)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert slots_of(tmp_path).read_bytes() == before
    asyncio.run(process.journal.end(ended(begin)))
    process.journal.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_result_waits_for_the_disk_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    process = Process(tmp_path, ends_on_disk=waits)
    synced: list[int] = []

    async def write() -> None:
        begin = await noted_in(process)
        monkeypatch.setattr(os, "fdatasync", synced.append)
        await process.journal.end(ended(begin))
        assert bool(synced) is waits

    asyncio.run(write())
    process.journal.close()
