"""Attack: be a container that lies to its host about how it boots, what it runs and how that ends."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stream_scripts import HELLO, Container, Script, entry, held, job, parked

from ringfence.capability.limits import MIB, Limits
from ringfence.errors import InternalError, IsolationUnavailable, RingfenceError
from ringfence.isolation.protocol import Kind, encode
from ringfence.isolation.stream import running, wire
from ringfence.isolation.stream.boot import bundle
from ringfence.ports import WorkerLost

pytestmark = [pytest.mark.guarantee(13), pytest.mark.guarantee(29), pytest.mark.timeout(60)]


def said_at_boot(data: bytes) -> Script:
    def script(container: Container) -> None:
        container.take(len(bundle()))
        container.until(Kind.SETUP)
        container.write(data)
        container.stay()

    return script


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x01",
        b"\0\0\0\0\x01",
        b"\0\0\0\x01\xff",
        b"HTTP/1.1 200 OK\r\n\r\n",
        encode(Kind.EXIT, b"0 0 0 0 0 0 0"),
        encode(Kind.STARTED),
        encode(Kind.READY),
        encode(Kind.READY, b"[]"),
        encode(Kind.READY, b"[" * 100_000),
        encode(Kind.READY, b"9" * 100_000),
        encode(Kind.READY, json.dumps({**HELLO, "notes": ["no such note"]}).encode()),
        encode(Kind.READY, json.dumps({**HELLO, "python": "3.11\x1b[2J"}).encode()),
        encode(Kind.READY, json.dumps({**HELLO, "pid": 1e400}).encode()),
        encode(Kind.FAILED),
        encode(Kind.FAILED, b"[" * 100_000),
        encode(Kind.FAILED, json.dumps({"stage": "x", "word": "", "error": "\x1b[2J\n" * 1000}).encode()),
        encode(Kind.FAILED, json.dumps({"stage": ["x"], "word": {}, "error": None}).encode()),
    ],
)
def test_a_container_that_boots_into_nonsense_is_refused_in_plain_words(data: bytes) -> None:
    with pytest.raises(RingfenceError) as refused:
        parked(said_at_boot(data))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 2000


def test_a_container_that_says_nothing_or_only_prints_is_given_up_in_time() -> None:
    def mute(container: Container) -> None:
        container.stay()

    def loud(container: Container) -> None:
        while True:
            os.write(container.errors, b"\x1b[2Jnot found\n" * 100)

    for script, said in ((mute, "in time"), (loud, "it said")):
        with pytest.raises(InternalError, match=said) as refused:
            parked(script, seconds=0.3)
        assert str(refused.value).isprintable()


@pytest.mark.parametrize("cut", [1, 3, 5, 9])
def test_a_container_that_ends_in_the_middle_of_a_word_is_lost_and_not_believed(cut: int) -> None:
    def script(container: Container) -> None:
        container.boot()
        container.until(Kind.START)
        container.write((encode(Kind.STARTED) + encode(Kind.EXIT, b"0 0 0 0 0 0 0"))[:cut])

    with held(script) as worker:
        if cut < 5:
            with pytest.raises(WorkerLost):
                asyncio.run(worker.run(job(), None))
        else:
            ending = asyncio.run(worker.run(job(), None))
            assert (ending.exit_code, ending.killed_by) == (None, "unknown")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x05",
        encode(Kind.STARTED),
        encode(Kind.READY),
        encode(Kind.PLACED, b"0"),
        encode(Kind.HARVEST, b"1"),
        encode(Kind.ENTRY, entry(b"a")),
        encode(Kind.TAKEN, b"1"),
        encode(Kind.TAKEN, b"-1"),
        encode(Kind.TAKEN, b"9" * 5000),
        encode(Kind.TERMINAL),
        encode(Kind.EXIT),
        encode(Kind.EXIT, b"0 0 0"),
        encode(Kind.EXIT, b"-1 0 0 0 0 0 0"),
        encode(Kind.EXIT, b"99999999 0 0 0 0 0 0"),
        encode(Kind.EXIT, b"0 0 0 0 0 0 " + b"9" * 5000),
        encode(Kind.EXIT, b"a b c d e f g"),
    ],
)
def test_a_word_out_of_turn_ends_the_container_and_the_run_is_nobodys_success(data: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        container.say(Kind.STDOUT, b"before")
        container.write(data)
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert (ending.exit_code, ending.signal, ending.killed_by) == (None, None, "unknown")
        assert ending.stdout in (b"", b"before")
        assert worker.harvest(Limits()).artifacts == ()


def test_output_before_the_job_was_understood_is_nobodys() -> None:
    def script(container: Container) -> None:
        container.boot()
        container.say(Kind.STDOUT, b"early")
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert (ending.killed_by, ending.stdout) == ("unknown", b"")


def test_a_second_farewell_changes_nothing() -> None:
    def script(container: Container) -> None:
        container.start()
        container.write(encode(Kind.EXIT, b"256 0 0 0 0 0 0") + encode(Kind.EXIT, b"0 0 0 0 0 0 0"))
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert ending.exit_code != 0


def test_a_container_that_does_not_end_its_guest_is_killed_whatever_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "END_SECONDS", 0.2)

    def deaf(container: Container) -> None:
        container.start()
        while not container.killed.is_set():
            container.say(Kind.STDOUT, b"still here\n")

    with held(deaf) as worker:
        ending = asyncio.run(worker.run(job(wall_seconds=0.2), None))
        assert (ending.killed_by, ending.exit_code) == ("wall_timeout", None)


def test_an_engine_that_does_not_even_kill_does_not_keep_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "END_SECONDS", 0.1)

    def script(container: Container) -> None:
        container.start()
        container.stay()

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(wall_seconds=0.1), None))
        assert ending.killed_by == "wall_timeout"


def test_a_job_that_nobody_was_heard_to_take_is_not_told_as_a_program_that_took_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "END_SECONDS", 0.1)

    def silent(container: Container) -> None:
        container.boot()
        container.stay()

    with held(silent) as worker, pytest.raises(IsolationUnavailable) as refusal:
        asyncio.run(worker.run(job(wall_seconds=0.1), None))
    assert refusal.value.reason == "engine_hung"
    assert "nothing was heard" in str(refusal.value)


def test_input_that_is_never_taken_keeps_to_its_window() -> None:
    def script(container: Container) -> None:
        container.start()
        taken = 0
        while taken < wire.WINDOW_BYTES:
            taken += len(container.until(Kind.STDIN))
        os.set_blocking(container.inlet, False)
        with pytest.raises(BlockingIOError):
            os.read(container.inlet, 1)
        container.say(Kind.EXIT, b"0 0 0 0 0 0 0")
        os.set_blocking(container.inlet, True)
        container.stay()

    with held(script) as worker:
        assert asyncio.run(worker.run(job(stdin=bytes(4 * MIB)), None)).exit_code == 0


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_whatever_a_container_says_a_run_ends(data: bytes) -> None:
    def script(container: Container) -> None:
        container.start()
        container.write(data)

    with held(script) as worker:
        ending = asyncio.run(worker.run(job(), None))
        assert ending.killed_by == "unknown"


def test_a_worker_spec_is_all_a_container_is_told() -> None:
    heard: list[bytes] = []

    def script(container: Container) -> None:
        container.take(len(bundle()))
        heard.append(container.until(Kind.SETUP))
        container.say(Kind.READY, json.dumps(HELLO).encode())
        container.stay()

    os.environ["RINGFENCE_TEST_SECRET"] = "do not tell"
    try:
        with held(script, session=None):
            pass
    finally:
        del os.environ["RINGFENCE_TEST_SECRET"]
    assert b"do not tell" not in heard[0]
    assert str(Path.home()).encode() not in heard[0]
