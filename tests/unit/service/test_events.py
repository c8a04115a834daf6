"""The ring of events: whoever reads on from any number gets everything that followed, or is told what is gone."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.interfaces.http.event_stream import EventStream
from ringfence.service import events
from ringfence.service.events import Event, Ring, forgotten
from ringfence.service.execs import Stream

CHUNKS = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=60)), max_size=40)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "RING_BYTES", 1000)
    monkeypatch.setattr(events, "RING_EVENTS", 12)


def gaps(found: tuple[Event, ...], after: int) -> set[int]:
    """Return the numbers that are neither there nor said to be lost."""
    told: set[int] = set()
    for event in found:
        if event.name == "lost":
            lost = json.loads(event.data)
            told |= set(range(lost["from"], lost["to"] + 1))
        else:
            told.add(event.number)
    last = found[-1].number if found else after
    return set(range(after + 1, last + 1)) - told


@settings(max_examples=60)
@given(CHUNKS, st.integers(0, 45))
def test_no_gap_is_left_unsaid(chunks: list[tuple[str, bytes]], after: int) -> None:
    ring = Ring()
    for stream, chunk in chunks:
        ring.output(stream, chunk)
    found = ring.after(after)
    assert gaps(found, after) == set()
    assert [event.number for event in found] == sorted({event.number for event in found})
    assert not found or found[-1].number == ring.last or found[-1].name == "lost"
    assert ring.size <= 1000 or len(ring.after(0)) <= 2


@settings(max_examples=60)
@given(CHUNKS)
def test_offsets_say_where_each_piece_belongs(chunks: list[tuple[str, bytes]]) -> None:
    ring = Ring()
    whole = {"stdout": b"", "stderr": b""}
    for stream, chunk in chunks:
        ring.output(stream, chunk)
        whole[stream] += chunk
    for event in ring.after(0):
        if event.name == "output":
            data = json.loads(event.data)
            piece = base64.b64decode(data["data_b64"])
            assert whole[data["stream"]][data["offset"] : data["offset"] + len(piece)] == piece
            assert data.get("text", piece.decode("utf-8", "replace")).encode("utf-8", "replace") or not piece


def test_a_number_that_never_was_has_nothing_after_it() -> None:
    ring = Ring()
    ring.status("queued")
    assert ring.after(99) == ()


async def test_who_follows_is_woken_by_what_happens_and_by_the_end() -> None:
    ring, client = Ring(), Client()
    following = asyncio.ensure_future(client.follow(ring))
    await asyncio.sleep(0)
    ring.status("running")
    await asyncio.sleep(0)
    ring.output("stdout", b"x")
    ring.end()
    await following
    assert client.heard() == [(1, "status"), (2, "output"), (3, "result")]


async def test_silence_is_broken_by_signs_of_life() -> None:
    ring, client = Ring(), Client()
    following = asyncio.ensure_future(client.follow(ring, heartbeat=0.001))
    await client.sees_life.wait()
    ring.end()
    await following
    assert client.heard() == [(1, "result")]


async def test_of_what_is_forgotten_all_is_said_to_be_lost() -> None:
    client = Client()
    await client.follow(forgotten("succeeded", 41), 41)
    assert client.heard() == [(42, "lost"), (43, "status"), (44, "result")]


async def test_nothing_is_told_to_whoever_has_left() -> None:
    ring, client = Ring(), Client()
    following = asyncio.ensure_future(client.follow(ring, heartbeat=0.001))
    client.leaves.set()
    await following
    assert client.heard() == []


class Client:
    """The other end of a stream of events, and what came over it."""

    def __init__(self) -> None:
        self.text = ""
        self.sees_life = asyncio.Event()
        self.leaves = asyncio.Event()

    async def follow(self, ring: Ring, after: int = 0, heartbeat: float = 15.0) -> None:
        async def conclusion() -> dict[str, Any]:
            return {"status": "succeeded"}

        stream = EventStream(Stream(ring, conclusion), after, is_ending=lambda: False, heartbeat=heartbeat)
        await stream({"type": "http"}, self._receive, self._send)

    def heard(self) -> list[tuple[int, str]]:
        return [
            (int(number), name) for number, name in re.findall(r"^id: (\d+)\nevent: (\w+)$", self.text, re.MULTILINE)
        ]

    async def _receive(self) -> dict[str, Any]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.text += message.get("body", b"").decode()
        if ": still here" in self.text:
            self.sees_life.set()
