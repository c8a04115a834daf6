from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Self

import pytest
from tests.unit.bench.scripted import TINY, ScriptedManager, bench_of, measured

from ringfence.bench.bare import WrongOutput, interpreter, python, timed
from ringfence.bench.boxes import boxes
from ringfence.bench.latency import preload, warm
from ringfence.bench.load import burst, crowd, footprint
from ringfence.bench.measure import CASES
from ringfence.bench.pairs import interleave
from ringfence.errors import InternalError
from ringfence.interfaces.cli.bench import bench_command
from ringfence.interfaces.cli.help_text import COMMANDS
from ringfence.interfaces.cli.usage import UsageError
from ringfence.outcome import Status


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what is measured out of the home of whoever runs the tests."""
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_bare_is_the_base_interpreter_isolated() -> None:
    assert python("x")[1:] == ["-I", "-c", "x"]
    assert Path(interpreter()).exists()


def test_a_bare_program_with_the_wrong_output_is_not_timed() -> None:
    with pytest.raises(WrongOutput):
        timed(python("print(2)"), b"1\n")()


def test_pairs_alternate_and_both_sides_have_as_many() -> None:
    order: list[str] = []

    def bare() -> float:
        order.append("b")
        return 0.1

    async def ours() -> float:
        order.append("o")
        return 0.2

    theirs, own = asyncio.run(interleave("x", bare, ours, pairs=3, gap_seconds=0, warm_up=2))
    assert "".join(order) == "oob" + "ob" + "bo" + "ob"
    assert (theirs.seconds, own.seconds) == ((0.1,) * 3, (0.2,) * 3)


def test_warm_uses_the_default_pool_and_prints_the_closed_loop_beside_it() -> None:
    manager = ScriptedManager()
    result = asyncio.run(warm(bench_of(manager)))
    assert manager.opened == [{}, {}]  # the box alone, and the whole
    assert manager.calls == 2 * TINY.warm_up + 3 * TINY.pairs
    assert measured(result.lines) == {"warm_p50": True, "warm_p99": True, "governed_p50": True}
    assert [series.name for series in result.series] == [
        "warm: bare",
        "warm: ringfence",
        "governed: bare",
        "governed: ringfence",
        "governed: ringfence, closed loop",
    ]


def test_a_run_that_fails_is_never_counted_as_fast() -> None:
    for manager in (ScriptedManager(stdout=b""), ScriptedManager(status=Status.FAILED)):
        with pytest.raises(WrongOutput):
            asyncio.run(warm(bench_of(manager)))


def test_a_crowd_makes_exactly_the_runs_it_counts() -> None:
    manager = ScriptedManager()
    result = asyncio.run(crowd(bench_of(manager)))
    assert manager.calls == 32 * TINY.crowd_callers + TINY.crowd_runs
    assert measured(result.lines) == {"crowd": True, "crowd_growth": True}
    assert len(result.series[0].seconds) == TINY.crowd_runs


@pytest.mark.needs("native")
def test_boxes_that_nobody_governs_are_real_ones_and_none_is_left(tmp_path: Path) -> None:
    manager = ScriptedManager()
    before = set(os.listdir("/proc/self/fd"))
    (line,) = asyncio.run(boxes(bench_of(manager, tmp_path))).lines
    assert line.measured is not None
    assert (line.promise, manager.calls) == (None, 0)
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_burst_is_made_of_all_its_calls_at_once() -> None:
    manager = ScriptedManager()
    result = asyncio.run(burst(bench_of(manager)))
    assert manager.calls == 1 + TINY.burst * TINY.bursts
    assert measured(result.lines) == {"burst": True}


def test_the_footprint_is_read_from_the_kernel() -> None:
    manager = ScriptedManager()
    result = asyncio.run(footprint(bench_of(manager)))
    assert manager.opened == [{"pool_size": 4}]
    assert result.lines[0].measured is not None
    assert result.lines[0].measured > 1


def test_bare_imports_the_same_packages_that_are_preloaded(tmp_path: Path) -> None:
    for name in ("numpy", "pandas"):
        (tmp_path / f"{name}.py").write_text("")
    manager = ScriptedManager()
    result = asyncio.run(preload(bench_of(manager, tmp_path)))
    assert manager.opened == [{"packages": ("numpy", "pandas"), "preload": ("numpy", "pandas")}]
    assert measured(result.lines) == {"preload_p50": True}


def test_what_is_measured_has_a_home_of_its_own_on_the_disk_of_the_usual_one(home: Path) -> None:
    seen: list[Path] = []

    class Looking(ScriptedManager):
        async def __aenter__(self) -> Self:
            seen.append(Path(os.environ["RINGFENCE_HOME"]))
            assert seen[0].is_dir()
            return self

    assert bench_command(["--only", "unparked"], open_manager=Looking(), settings=TINY) == 0
    assert [place.parent for place in seen] == [home]
    assert os.environ["RINGFENCE_HOME"] == str(home)
    assert list(home.iterdir()) == []


def test_a_home_that_cannot_be_written_is_said_before_anything_is_measured(home: Path) -> None:
    home.write_text("")
    with pytest.raises(UsageError, match="home"):
        bench_command(["--only", "unparked"], open_manager=ScriptedManager(), settings=TINY)


def test_the_command_prints_a_table_and_saves_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--only", "warm", "--plot", str(tmp_path / "plot.svg")]
    assert bench_command(words, open_manager=ScriptedManager(), settings=TINY) == 0
    assert "warm print(1), p50" in capsys.readouterr().out
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")


def test_the_command_prints_one_object_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_command(["--only", "unparked", "--json"], open_manager=ScriptedManager(), settings=TINY) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["lines"][0]["promise"]["id"] == "unparked_p50"
    assert [series["count"] for series in answer["series"]] == [3, 3]


def test_a_wrong_output_ends_the_bench_with_our_own_failure() -> None:
    with pytest.raises(InternalError):
        bench_command(["--only", "warm"], open_manager=ScriptedManager(stdout=b"2\n"), settings=TINY)


def test_the_manual_names_every_case() -> None:
    assert all(name in COMMANDS["bench"] for name in CASES)
