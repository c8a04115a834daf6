"""Browsers for sessions: whose each is, how many there are, and what becomes of those that die or are not used."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import browser_processes as processes
from tests.browser_lab import GRANTED, OTHER, WEB, BrowserLab, ledger, rules, running_lab

from ringfence.browser.port import Bounds
from ringfence.errors import CapabilityBlocked, InvalidRequest, Overloaded, Unavailable

pytestmark = pytest.mark.needs("browser")


@pytest.fixture(scope="module")
def lab() -> Iterator[BrowserLab]:
    with running_lab(most=2, most_waiting=0) as lab:
        yield lab


def test_what_is_not_used_is_closed_and_so_is_everything_in_the_end() -> None:
    before = len(os.listdir("/proc/self/fd"))  # the first of all: no other browser is there yet
    with running_lab(most=1, idle_seconds=0.2) as lab:

        async def use() -> None:
            tab = await lab.browsers.tab("idle", "a", rules(*GRANTED), ledger())
            await tab.open(lab.web.show("/page", ""), 10)
            browser = os.pidfd_open(tab.box.browser_pid())
            assert await asyncio.to_thread(processes.ended, browser)
            os.close(browser)
            went = await tab.close()
            assert {place.host for place in went.destinations} >= {WEB}

        asyncio.run(use())
    assert [name for name in processes.below(os.getpid()).values() if "chrom" in name or name == "node"] == []
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_session_keeps_its_page_and_another_gets_another(lab: BrowserLab) -> None:
    one = await lab.browsers.tab("one", "a", rules(WEB), ledger())
    assert await lab.browsers.tab("one", "a", rules(WEB), ledger()) is one
    lab.web.show("/cookie", "<title>x</title>", Set_Cookie="who=one")
    await one.open(f"http://{WEB}/cookie", 10)
    other = await lab.browsers.tab("one", "b", rules(WEB), ledger())  # the same name, of another tenant
    assert other is not one
    assert other.box.sandbox_id != one.box.sandbox_id
    await asyncio.gather(one.close(), other.close())


async def test_other_rules_mean_another_box_and_never_a_wider_gate(lab: BrowserLab) -> None:
    lab.web.show("/page", "<title>x</title>")
    narrow = await lab.browsers.tab("rules", "a", rules(WEB), ledger())
    with pytest.raises(CapabilityBlocked):
        await narrow.open(f"http://{OTHER}/page", 10)
    wide = await lab.browsers.tab("rules", "a", rules(WEB, OTHER), ledger())
    assert wide.box.sandbox_id != narrow.box.sandbox_id
    assert not narrow.alive
    assert (await wide.open(f"http://{OTHER}/page", 10)).status == 200
    went = await wide.close()
    assert {place.host for place in went.destinations if place.decision == "allowed"} == {OTHER}
    assert await wide.close() == went


async def test_when_every_box_is_taken_and_nobody_may_wait_the_next_is_refused(lab: BrowserLab) -> None:
    tabs = [await lab.browsers.tab(name, "a", rules(WEB), ledger()) for name in ("first", "second")]
    with pytest.raises(Overloaded) as refusal:
        await lab.browsers.tab("third", "a", rules(WEB), ledger())
    assert refusal.value.reason == "queue_full"
    await tabs[0].close()
    third = await lab.browsers.tab("third", "a", rules(WEB), ledger())
    assert third.alive
    await asyncio.gather(third.close(), tabs[1].close())


async def test_the_end_of_the_driver_ends_its_boxes_and_the_next_page_has_a_new_one(lab: BrowserLab) -> None:
    tab = await lab.browsers.tab("driver", "a", rules(WEB), ledger())
    for pid in processes.below(os.getpid()):
        if b"playwright/driver/node" in processes.readable(f"/proc/{pid}/cmdline"):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable):
        await tab.open(lab.web.show("/page", ""), 10)
    await tab.close()
    again = await lab.browsers.tab("driver", "a", rules(WEB), ledger())
    assert (await again.open(lab.web.show("/page", "<title>back"), 10)).title == "back"
    await again.close()


def test_a_browser_that_does_not_start_is_told_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/nonexistent")
    monkeypatch.setattr("ringfence.browser.room.find_chromium", lambda: str(program))
    with running_lab(most=1) as lab:
        for _ in range(2):  # the place is given back
            with pytest.raises(Unavailable) as refusal:
                asyncio.run(lab.browsers.tab("s", "a", rules(WEB), ledger()))
            assert refusal.value.reason in ("isolation_unavailable", "browser_crashed")


def test_without_chromium_the_fix_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfence.browser.chromium._PROGRAMS", ())
    with running_lab() as lab, pytest.raises(Unavailable) as refusal:
        asyncio.run(lab.browsers.tab("s", "a", rules(WEB), ledger()))
    assert refusal.value.reason == "browser_backend_missing"
    assert refusal.value.fix == "apt-get install chromium, and pip install 'ringfence[browser]'"


def test_no_viewport_is_larger_than_a_screen() -> None:
    with pytest.raises(InvalidRequest):
        Bounds(width=1921)
