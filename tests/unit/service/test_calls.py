"""Calls under a grant end when nobody uses them, and how that goes is nobody else's trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ringfence.authority.caller import Caller
from ringfence.service.callers import Access, Principal
from ringfence.service.calls import IDLE_SECONDS, Calls, GrantShown
from ringfence.testing import FrozenClock


class Managers:
    """Stands in for a manager: every call under it can be held up, or fail, while it ends."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.broken: set[str] = set()

    @asynccontextmanager
    async def under(self, _token: str, *, call_id: str) -> AsyncIterator[str]:
        yield call_id
        await self.goes_on.wait()
        self.ended.append(call_id)
        if call_id in self.broken:
            raise OSError("the disk is full")


def who(subject: str = "ann") -> Principal:
    return Principal(Caller("acme", subject), Access.ADMIN, "key-1")


def shown(call_id: str) -> GrantShown:
    return GrantShown("token", call_id)


async def opened(calls: Calls, managers: Any, *names: str) -> None:
    for name in names:
        governed: object = await calls.manager(managers, who(), shown(name))
        assert governed == name


async def test_two_requests_that_end_idle_calls_at_once_are_both_answered() -> None:
    """Seen red: the second looked for a call that the first had ended while it waited, and failed."""
    clock, managers = FrozenClock(), Managers()
    calls = Calls(clock)
    await opened(calls, managers, "one", "two")
    clock.advance(IDLE_SECONDS + 1)
    managers.goes_on.clear()
    asked = [asyncio.ensure_future(opened(calls, managers, name)) for name in ("three", "four")]
    await asyncio.sleep(0.01)
    managers.goes_on.set()
    await asyncio.gather(*asked)
    assert sorted(managers.ended) == ["one", "two"]


async def test_a_call_that_ends_badly_is_nobody_elses_trouble(caplog: pytest.LogCaptureFixture) -> None:
    clock, managers = FrozenClock(), Managers()
    calls = Calls(clock)
    await opened(calls, managers, "one", "two")
    managers.broken.add("one")
    clock.advance(IDLE_SECONDS + 1)
    await opened(calls, managers, "three")
    assert sorted(managers.ended) == ["one", "two"]
    assert "did not end well" in caplog.text


async def test_all_calls_end_with_their_service_also_after_one_that_ends_badly() -> None:
    managers = Managers()
    calls = Calls()
    await opened(calls, managers, "one", "two")
    managers.broken.add("two")
    await calls.close()
    assert sorted(managers.ended) == ["one", "two"]


async def test_whoever_ends_a_call_hears_how_that_went() -> None:
    managers = Managers()
    calls = Calls()
    await opened(calls, managers, "one")
    managers.broken.add("one")
    with pytest.raises(OSError, match="full"):
        await calls.end(who(), "one")
    await calls.end(who(), "one")


@pytest.mark.parametrize("fails", [True, False])
async def test_a_call_can_be_ended_while_it_begins(fails: bool) -> None:
    goes_on = asyncio.Event()

    class Slow(Managers):
        @asynccontextmanager
        async def under(self, _token: str, *, call_id: str) -> AsyncIterator[str]:
            await goes_on.wait()
            if fails:
                raise OSError("no grants here")
            yield call_id
            self.ended.append(call_id)

    calls, managers = Calls(), Slow()
    beginning = asyncio.ensure_future(opened(calls, managers, "one"))
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(calls.end(who(), "one"))
    await asyncio.sleep(0)
    goes_on.set()
    began, ended = await asyncio.gather(beginning, ending, return_exceptions=True)
    assert isinstance(began, OSError) if fails else began is None
    assert ended is None
    assert managers.ended == ([] if fails else ["one"])
