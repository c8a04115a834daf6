"""The cases of the HTTP door, with a real service and as few calls as make a series."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.bench.scripted import TINY, ScriptedManager, bench_of, measured

from ringfence.bench.bare import WrongOutput
from ringfence.bench.doors import Crowd, http_crowd, http_idle, http_list, http_p50, serving
from ringfence.bench.http_caller import Wire

SMALL = replace(TINY, http_crowd_seconds=0.2, http_idle_clients=5, journal_records=200, settle_seconds=0)


def test_one_call_is_held_against_bare(tmp_path: Path) -> None:
    result = asyncio.run(http_p50(replace(bench_of(ScriptedManager()), home=tmp_path, settings=SMALL)))
    assert measured(result.lines) == {"http_p50": True}
    assert [len(series.seconds) for series in result.series] == [SMALL.pairs, SMALL.pairs]


def test_a_crowd_is_counted_with_its_errors(tmp_path: Path) -> None:
    result = asyncio.run(http_crowd(replace(bench_of(ScriptedManager()), home=tmp_path, settings=SMALL)))
    assert measured(result.lines) == {"http_crowd_errors": True, "http_crowd_p99": True, "http_crowd": True}
    assert result.lines[0].measured == 0
    assert len(result.series[0].seconds) >= 64


def test_idle_clients_are_weighed(tmp_path: Path) -> None:
    result = asyncio.run(http_idle(replace(bench_of(ScriptedManager()), home=tmp_path, settings=SMALL)))
    assert measured(result.lines) == {"http_idle": True}


def test_lists_are_compared(tmp_path: Path) -> None:
    result = asyncio.run(
        http_list(replace(bench_of(ScriptedManager()), home=tmp_path, settings=replace(SMALL, pairs=4)))
    )
    assert measured(result.lines) == {"http_list": True}
    assert len(result.series) == 4


def test_a_wrong_answer_is_never_counted_as_fast(tmp_path: Path) -> None:
    with serving(tmp_path) as service, pytest.raises(WrongOutput, match="no page"):
        service.order(do="one", path="/sandbox/execs/ex_1")


def test_an_answer_is_whole_when_all_of_its_body_has_come() -> None:
    import socket

    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire = Wire(ours)
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        assert not wire.read()
        theirs.sendall(b"cd")
        assert wire.read()
        theirs.close()
        with pytest.raises(ConnectionError):
            wire.read()


def test_two_crowds_are_one() -> None:
    both = Crowd((1.0, 2.0), 1.0).and_then(Crowd((3.0,), 2.0))
    assert both.rate == 1.0
    assert both.seconds == (1.0, 2.0, 3.0)


def test_the_caller_is_no_part_of_the_service() -> None:
    code = "import sys, ringfence.bench.http_caller; print([m for m in sys.modules if m.startswith('fastapi')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
