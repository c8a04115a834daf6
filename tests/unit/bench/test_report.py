from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from ringfence.bench.load import Holdings, growth
from ringfence.bench.plot import plot
from ringfence.bench.promise import CROWD, PROMISES, WARM_P50, Line, judged
from ringfence.bench.report import Report, table
from ringfence.bench.series import Series


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (judged(WARM_P50, 0.10), "PASS"),
        (judged(WARM_P50, 0.11), "miss"),
        (judged(CROWD, 2.5), "PASS"),
        (judged(CROWD, 2.4), "miss"),
        (judged(WARM_P50, None), "not measured"),
        (Line("bwrap", 1.5), ""),
    ],
)
def test_a_measurement_is_held_against_the_right_side_of_its_bound(line: Line, verdict: str) -> None:
    assert line.verdict == verdict


def test_every_promise_has_an_id_of_its_own() -> None:
    assert len({promise.id for promise in PROMISES}) == len(PROMISES)


def test_the_table_shows_promise_measure_verdict_and_machine() -> None:
    report = Report({"cpu": "2 x Test", "kernel": "6.1"}, True, (judged(WARM_P50, 0.04, "0.5 to 12 ms"),), ())
    assert table(report) == (
        "                    promised       measured           \n".rstrip(" \n")
        + "\n"
        + "warm print(1), p50  <= 0.1 x bare  0.04 x bare  PASS  0.5 to 12 ms\n"
        "\n"
        "quick: too few runs to quote\n"
        "\n"
        "  cpu     2 x Test\n"
        "  kernel  6.1\n"
    )


def test_the_picture_is_a_document_with_one_curve_per_series() -> None:
    series = [Series("a <b>", (0.001, 0.002)), Series("c", (0.01,))]
    root = ET.fromstring(plot(series))
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    assert "a <b> (p50 1.50 ms)" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_of_nothing_is_still_a_document() -> None:
    ET.fromstring(plot([]))


BEFORE = Holdings(memory_bytes=50_000_000, fds=10, cgroups=0, mounts=20)
WARM = Holdings(memory_bytes=60_000_000, fds=40, cgroups=16, mounts=20)


def test_a_larger_pool_is_not_growth() -> None:
    larger = Holdings(memory_bytes=61_000_000, fds=140, cgroups=56, mounts=20)
    assert growth(BEFORE, WARM, larger, BEFORE, more_parked=8) == ()


def test_the_same_holdings_without_a_larger_pool_are_growth() -> None:
    larger = Holdings(memory_bytes=61_000_000, fds=140, cgroups=56, mounts=20)
    assert growth(BEFORE, WARM, larger, BEFORE, more_parked=0) == ("fds", "cgroups")


def test_what_is_left_when_the_manager_is_closed_is_growth() -> None:
    left = Holdings(memory_bytes=50_000_000, fds=11, cgroups=1, mounts=21)
    assert growth(BEFORE, WARM, WARM, left, more_parked=0) == ("fds", "cgroups", "mounts")


def test_memory_is_judged_while_running() -> None:
    heavier = Holdings(memory_bytes=70_000_000, fds=40, cgroups=16, mounts=20)
    assert growth(BEFORE, WARM, heavier, BEFORE, more_parked=0) == ("memory",)
