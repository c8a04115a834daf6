"""Attack the brokers that touch files for an agent: the workspace changes under them, a bounded number of times."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.security.broker_ground import Ground, attempt
from tests.security.broker_ground import ground as ground

from ringfence.errors import CapabilityBlocked, InvalidRequest, PathTraversalError, RingfenceError
from ringfence.operation.brokered import FsDelete, FsList, FsMkdir, FsRead, FsStat, FsWrite

pytestmark = pytest.mark.guarantee(16)
RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one step, so that neither is ever missing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def swapping(one: Path, other: Path, times: int) -> Iterator[threading.Thread]:
    """Swap the two names `times` times in a thread beside the test."""

    def swap() -> None:
        for _ in range(times):
            exchange(one, other)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def test_a_directory_swapped_for_a_link_leads_nowhere(ground: Ground, count: Callable[[int], int]) -> None:
    (ground.work / "d").mkdir()
    (ground.work / "d" / "secret").write_text("inside")
    os.symlink(ground.outside, ground.work / "evil")
    seen: set[bytes | None] = set()
    with swapping(ground.work / "d", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            for operation in (
                FsRead("work/d/secret"),
                FsWrite("work/d/planted", b"x", overwrite=True),
                FsMkdir("work/d/made"),
                FsDelete("work/d/secret.no"),
                FsStat("work/d/secret"),
            ):
                try:
                    seen.add(ground.broker.perform(operation, inline=True).content)
                except (PathTraversalError, InvalidRequest, CapabilityBlocked):
                    continue
    assert seen <= {None, b"inside"}
    assert ground.untouched()


def test_allowed_links_lead_nowhere_else_while_everything_moves(ground: Ground, count: Callable[[int], int]) -> None:
    for name in ("d", "other"):
        (ground.work / name).mkdir()
        (ground.work / name / "secret").write_text("inside")
    os.symlink(ground.outside, ground.work / "evil")
    os.symlink("other/../d/secret", ground.work / "around")
    broker = ground.with_links()
    seen: set[bytes | None] = set()
    with (
        swapping(ground.work / "d", ground.work / "evil", count(100_000)) as attacker,
        swapping(ground.work / "other", ground.work / "d", count(100_000)),
    ):
        while attacker.is_alive():
            came = attempt(broker, FsRead("work/around"))
            if not isinstance(came, RingfenceError):
                seen.add(came.content)
    assert seen <= {b"inside"}
    assert ground.untouched()


def test_a_file_swapped_for_a_link_is_never_read_or_written_through(
    ground: Ground, count: Callable[[int], int]
) -> None:
    (ground.work / "f").write_text("inside")
    os.symlink(ground.outside / "secret", ground.work / "evil")
    seen: set[bytes | None] = set()
    with swapping(ground.work / "f", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            try:
                seen.add(ground.broker.perform(FsRead("work/f"), inline=True).content)
            except PathTraversalError:
                continue
    with swapping(ground.work / "f", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            try:
                ground.broker.perform(FsWrite("work/f", b"inside", overwrite=True))
            except PathTraversalError:
                continue
    assert seen <= {b"inside"}
    assert ground.untouched()


def test_a_directory_replaced_while_it_is_listed_shows_nothing_of_the_other(
    ground: Ground, count: Callable[[int], int]
) -> None:
    (ground.work / "d").mkdir()
    for n in range(50):
        (ground.work / "d" / f"inside-{n}").touch()
    for n in range(50):
        (ground.outside / f"outside-{n}").touch()
    os.symlink(ground.outside, ground.work / "evil")
    names: set[str] = set()
    with swapping(ground.work / "d", ground.work / "evil", count(200_000)) as attacker:
        while attacker.is_alive():
            try:
                listed = ground.broker.perform(FsList("work/d"))
            except PathTraversalError:
                continue
            names |= {entry["name"].partition("-")[0] for entry in listed.out["entries"]}
    assert names <= {"inside"}


def test_entries_that_vanish_during_a_listing_are_left_out(ground: Ground, count: Callable[[int], int]) -> None:
    stays = {f"stays-{n:02}" for n in range(20)}
    for name in stays:
        (ground.work / name).touch()

    def churn() -> None:
        for n in range(count(20_000)):
            path = ground.work / f"goes-{n % 7}"
            path.touch()
            path.unlink()

    attacker = threading.Thread(target=churn)
    attacker.start()
    while attacker.is_alive():
        seen: list[str] = []
        cursor = None
        while True:
            page = ground.broker.perform(FsList("work", cursor=cursor, limit=3)).out
            seen += [entry["name"] for entry in page["entries"]]
            cursor = page["cursor"]
            if cursor is None:
                break
        assert sorted(name for name in seen if name.startswith("stays")) == sorted(stays)  # each once
    attacker.join()


def test_a_reader_sees_the_old_file_or_the_new_one_and_no_mixture(ground: Ground, count: Callable[[int], int]) -> None:
    whole = [bytes([letter]) * 300_000 for letter in b"ab"]
    ground.broker.perform(FsWrite("work/f", whole[0]))

    def rewrite() -> None:
        for n in range(count(2000)):
            ground.broker.perform(FsWrite("work/f", whole[n % 2], overwrite=True))

    writer = threading.Thread(target=rewrite)
    writer.start()
    while writer.is_alive():
        assert (ground.work / "f").read_bytes() in whole
        assert ground.broker.perform(FsRead("work/f"), inline=True).content in whole
    writer.join()
    assert os.listdir(ground.work) == ["f"]


def test_of_many_who_write_a_new_name_one_succeeds(ground: Ground) -> None:
    won: list[int] = []
    lost: list[str] = []
    gate = threading.Barrier(4)

    def write(n: int) -> None:
        for turn in range(20):
            gate.wait()
            came = attempt(ground.broker, FsWrite(f"work/{turn}", str(n).encode()))
            if isinstance(came, RingfenceError):
                lost.append(came.reason)
            else:
                won.append(n)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), lost) == (20, ["exists"] * 60)
    assert len(os.listdir(ground.work)) == 20
