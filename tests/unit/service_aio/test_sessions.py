"""The desk of sessions, with a clock of the test's own, and what a shell session carries on."""

from __future__ import annotations

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.service.aio import carried
from ringfence.service.aio.carried import Carried
from ringfence.service.aio.sessions import (
    IDLE_SECONDS,
    MOST_COMMANDS,
    MOST_OF_A_TENANT,
    Command,
    Desk,
    Kind,
    Place,
)

HERE = Place("acme", "p")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def desk(clock: Clock) -> Desk:
    return Desk(clock)


def test_a_session_is_found_where_it_was_made_and_nowhere_else(desk: Desk) -> None:
    made = desk.opened(HERE, Kind.BASH, "s")
    assert desk.find(HERE, Kind.BASH, "s") is desk.opened(HERE, Kind.BASH, "s") is made
    for place, kind in (
        (Place("other", "p"), Kind.BASH),
        (Place("acme", "q"), Kind.BASH),
        (HERE, Kind.SHELL),
        (HERE, Kind.PYTHON),
    ):
        with pytest.raises(InvalidRequest, match="there is no such session"):
            desk.find(place, kind, "s")
        assert desk.listed(place, kind) == []


@pytest.mark.parametrize("name", ["", " ", "a/b", "../a", "a\n", "é", "-a", "x" * 129])
def test_what_is_no_name_is_refused(desk: Desk, name: str) -> None:
    with pytest.raises(InvalidRequest):
        desk.opened(HERE, Kind.BASH, name)


def test_names_that_were_not_given_are_not_guessed(desk: Desk) -> None:
    names = {desk.opened(HERE, Kind.BASH, None).session_id for _ in range(50)}
    assert len(names) == 50
    assert all(len(name) == 32 for name in names)


def test_a_session_nobody_comes_back_to_is_forgotten_unless_something_runs_in_it(desk: Desk, clock: Clock) -> None:
    idle, busy = desk.opened(HERE, Kind.BASH, "idle"), desk.opened(HERE, Kind.BASH, "busy")
    busy.add(Command("c", "sleep", "pr_1"))
    clock.now = IDLE_SECONDS
    assert desk.listed(HERE, Kind.BASH) == [idle, busy]
    clock.now += 1
    assert desk.listed(HERE, Kind.BASH) == [busy]
    assert desk.age(busy) == (IDLE_SECONDS + 1, IDLE_SECONDS + 1)


def test_a_tenant_has_so_many_sessions_and_another_its_own(desk: Desk, clock: Clock) -> None:
    for number in range(MOST_OF_A_TENANT - 1):
        desk.opened(HERE, Kind.BASH, f"s{number}")
    clock.now = 1
    unnamed = desk.opened(HERE, Kind.BASH, None)
    desk.opened(HERE, Kind.BASH, "one-more")  # in the place of the one that nobody named
    with pytest.raises(InvalidRequest):
        desk.find(HERE, Kind.BASH, unnamed.session_id)
    with pytest.raises(QuotaExceeded):
        desk.opened(Place("acme", "q"), Kind.SHELL, None)
    assert desk.opened(Place("other", "p"), Kind.BASH, None).count == 0


def test_a_session_remembers_so_many_commands_and_never_forgets_one_that_runs(desk: Desk) -> None:
    session = desk.opened(HERE, Kind.BASH, "s")
    session.add(Command("running", "x", "pr"))
    for number in range(3 * MOST_COMMANDS):
        session.add(Command(f"c{number}", "x", "pr", status="succeeded"))
    assert len(session.commands) == MOST_COMMANDS
    assert session.count == 3 * MOST_COMMANDS + 1
    assert session.command("running").status is None
    assert session.command(None).command_id == f"c{3 * MOST_COMMANDS - 1}"
    with pytest.raises(InvalidRequest):
        session.command("c0")


def told(began: dict[str, str], ended: dict[str, str]) -> bytes:
    parts = ("".join(f"{name}={value}\0" for name, value in each.items()).encode() for each in (began, ended))
    return b"\x1b]7711;%s;%s\x07" % tuple(map(base64.b64encode, parts))


def test_a_session_carries_its_directory_and_what_it_exported() -> None:
    base = {"PATH": "/bin", "PWD": "/workspace/work", "SHLVL": "1"}
    first = carried.after(Carried(), told(base, base | {"A": "1\n2", "PWD": "/workspace/work/d", "SHLVL": "2"}))
    assert (first.cwd, dict(first.variables)) == ("/workspace/work/d", {"A": "1\n2"})
    again = base | {"A": "1\n2"}
    assert carried.after(first, told(again, again)) == Carried("/workspace/work", {"A": "1\n2"})
    assert dict(carried.after(first, told(again, base)).variables) == {}
    assert first.environment()["BASH_ENV"] == "/workspace/inputs/.aio-session"


@pytest.mark.parametrize("where", ["/etc", "/workspace/../etc", "relative/../..", "", "/tmp"])
def test_a_directory_that_no_next_command_has_is_not_carried(where: str) -> None:
    assert carried.after(Carried("/workspace/work/d"), told({}, {"PWD": where})).cwd == "/workspace/work/d"


def test_what_is_too_much_or_no_telling_changes_nothing() -> None:
    before = Carried("/workspace/work/d", {"A": "1"})
    for output in (b"", b"\x1b]7711;!;!\x07", b"\x1b]7711;AA;AA\x07", told({}, {"B": "x" * 40_000}), b"\x1b]7711;"):
        assert carried.after(before, output) == before


@given(st.binary(max_size=100), st.binary(max_size=40))
def test_whatever_a_guest_says_carries_only_names_and_a_directory_of_the_project(output: bytes, more: bytes) -> None:
    forged = output + b"\x1b]7711;;" + base64.b64encode(more) + b"\x07"
    after = carried.after(Carried(), forged)
    assert after.cwd.startswith("/workspace")
    assert all(name.isidentifier() and "\0" not in value for name, value in after.variables.items())
    assert "BASH_ENV" not in after.variables


def test_what_is_told_to_us_is_not_shown_nor_is_its_beginning() -> None:
    assert carried.shown(b"out" + told({}, {"A": "b"}) + b"put") == b"output"
    assert carried.shown(b"out\x1b]7711;QUJD") == b"out"
    assert carried.shown(b"\x1b]0;title\x07kept") == b"\x1b]0;title\x07kept"


async def test_who_edits_elsewhere_lets_no_two_edit_one_project_at_once() -> None:
    desk, place, elsewhere = Desk(), Place("acme", "one"), Place("acme", "two")
    lock = desk.edits(place)
    await lock.acquire()
    waiting = asyncio.ensure_future(lock.acquire())
    await asyncio.sleep(0)
    lock.release()  # nobody holds it now, and one who waits for it has not woken yet
    desk.edits(elsewhere)
    assert desk.edits(place) is lock
    await waiting


async def test_what_nobody_edits_is_forgotten() -> None:
    desk = Desk()
    for number in range(100):
        async with desk.edits(Place("acme", str(number))):
            pass
    assert len(desk._edits) == 0
