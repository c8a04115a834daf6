"""Those who look back: no tenant keeps the threads of the others, and nobody is sent away as somebody reads all."""

from __future__ import annotations

import asyncio
import threading

from ringfence.service.readers import Readers


async def test_a_tenant_that_asks_without_end_keeps_nobody_elses_thread() -> None:
    readers, let_go = Readers(), threading.Event()
    greedy = [asyncio.ensure_future(readers.read("greedy", let_go.wait)) for _ in range(100)]
    await asyncio.sleep(0)
    greedy[0].cancel()  # whoever leaves does not free the thread, and takes no other
    try:
        for tenant in ("a", "b", "c"):
            assert await asyncio.wait_for(readers.read(tenant, lambda: "found"), 30) == "found"
    finally:
        let_go.set()
        await asyncio.gather(*greedy, return_exceptions=True)
        readers.close()


async def test_who_comes_while_everything_is_read_shares_the_next_reading() -> None:
    readers, begun, let_go = Readers(), threading.Event(), threading.Event()
    readings: list[int] = []

    def read() -> int:
        readings.append(len(readings))
        begun.set()
        let_go.wait(30)
        return readings[-1]

    first = asyncio.ensure_future(readers.read_everything(read))
    await asyncio.to_thread(begun.wait, 30)
    later = [asyncio.ensure_future(readers.read_everything(read)) for _ in range(50)]
    await asyncio.sleep(0)
    later[0].cancel()  # who leaves takes nothing away from those who stay
    let_go.set()
    assert await first == 0
    assert {await each for each in later[1:]} == {1}
    assert readings == [0, 1]
    assert await readers.read_everything(read) == 2
    readers.close()


async def test_a_reading_that_fails_fails_for_those_who_shared_it_and_for_nobody_after() -> None:
    readers = Readers()

    def broken() -> None:
        raise ValueError("broken")

    told = await asyncio.gather(*(readers.read_everything(broken) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in told] == [ValueError] * 3
    assert await readers.read_everything(lambda: "well") == "well"
    readers.close()
