"""Cases about one call at a time: warm, un-parked, preloaded, javascript, and the cold command."""

from __future__ import annotations

import compileall
import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from ringfence.bench import bare, promise
from ringfence.bench.pairs import back_to_back, closed_loop, interleave
from ringfence.bench.promise import Line, Promise, judged
from ringfence.bench.series import Series
from ringfence.bench.subject import Bench, Measured, ours

PACKAGES = ("numpy", "pandas")
_PRINT = ("print(1)", "1\n")
_IMPORT = ("import numpy, pandas; print(1)", "1\n")
_SCRIPT = ("console.log(1)", "1\n")


async def warm(bench: Bench) -> Measured:
    """A parked worker of the default pool answers `print(1)`: the box alone, then with everything that governs it."""
    settings = bench.settings
    call = bare.timed(bare.python(_PRINT[0]), _PRINT[1].encode())
    pairs = partial(interleave, pairs=settings.pairs, gap_seconds=settings.gap_seconds, warm_up=settings.warm_up)
    async with bench.open_box() as box:
        beside, alone = await pairs("warm", call, ours(box, *_PRINT))
    async with bench.open_manager() as manager:
        run = ours(manager, *_PRINT)
        theirs, own = await pairs("governed", call, run)
        loop = await closed_loop("governed", run, runs=settings.pairs)
    return Measured(
        (
            judged(promise.WARM_P50, alone.p50 / beside.p50, _versus(alone, beside)),
            judged(promise.WARM_P99, alone.p99 / beside.p50, f"{_ms(alone.p99)} to {_ms(beside.p50)}"),
            judged(promise.GOVERNED_P50, own.p50 / theirs.p50, _versus(own, theirs)),
            Line("governed print(1), p99 to bare's p50", own.p99 / theirs.p50, _ms(own.p99)),
            Line("governed print(1), closed loop, p50", loop.p50 / theirs.p50, _versus(loop, theirs)),
            Line("governed print(1), closed loop, p99 to bare's p50", loop.p99 / theirs.p50, _ms(loop.p99)),
        ),
        (beside, alone, theirs, own, loop),
    )


async def unparked(bench: Bench) -> Measured:
    """With an empty pool, every call builds its box while the caller waits."""
    settings = bench.settings
    call = bare.timed(bare.python(_PRINT[0]), _PRINT[1].encode())
    async with bench.open_manager(pool_size=0) as manager:
        theirs, own = await interleave(
            "un-parked",
            call,
            ours(manager, *_PRINT),
            pairs=settings.pairs,
            gap_seconds=settings.gap_seconds,
            warm_up=settings.warm_up,
        )
    return Measured(_median(promise.UNPARKED_P50, own, theirs), (theirs, own))


async def preload(bench: Bench) -> Measured:
    """Numpy and pandas are imported before the worker is parked; bare imports them from the same wheels.

    Bare keeps `-I`, which ignores PYTHONPATH, so its code adds the directory to `sys.path` itself.
    """
    settings = bench.settings
    place = bench.environment(PACKAGES)
    command = bare.python(f"import sys; sys.path.insert(0, {str(place)!r}); {_IMPORT[0]}")
    async with bench.open_manager(packages=PACKAGES, preload=PACKAGES) as manager:
        theirs, own = await interleave(
            "preload",
            bare.timed(command, _IMPORT[1].encode()),
            ours(manager, *_IMPORT),
            pairs=settings.heavy_pairs,
            gap_seconds=settings.gap_seconds,
            warm_up=settings.warm_up,
        )
    return Measured(_median(promise.PRELOAD, own, theirs), (theirs, own))


async def javascript(bench: Bench) -> Measured:
    """A parked node worker answers `console.log(1)`."""
    settings = bench.settings
    node = shutil.which("node")
    if node is None:
        return Measured((judged(promise.JAVASCRIPT, None, "node is not installed"),))
    async with bench.open_manager() as manager:
        theirs, own = await interleave(
            "javascript",
            bare.timed([node, "-e", _SCRIPT[0]], _SCRIPT[1].encode()),
            ours(manager, *_SCRIPT, language="javascript"),
            pairs=settings.pairs,
            gap_seconds=settings.gap_seconds,
            warm_up=settings.warm_up,
        )
    return Measured(_median(promise.JAVASCRIPT, own, theirs), (theirs, own))


async def cold(bench: Bench) -> Measured:
    """The command from a shell: interpreter start, imports, the box, and its end."""
    # as whoever installs it does: where PYTHONDONTWRITEBYTECODE is set, every command would compile what was edited
    compileall.compile_dir(Path(bare.__file__).parents[1], quiet=2)
    script = Path(sys.executable).with_name("ringfence")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "ringfence"]
    command += ["run", "--no-stdin", "-c", _PRINT[0]]
    call = bare.timed(command, _PRINT[1].encode())

    async def run() -> float:
        return call()

    theirs, own = await interleave(
        "cold",
        bare.timed(bare.python(_PRINT[0]), _PRINT[1].encode()),
        run,
        pairs=bench.settings.cold_pairs,
        gap_seconds=bench.settings.gap_seconds,
        warm_up=1,
    )
    return Measured(_median(promise.COLD, own, theirs), (theirs, own))


async def neighbours(bench: Bench) -> Measured:
    """What else could run it: bwrap, docker run and docker exec, where they exist; nothing is promised of them."""
    gap, runs = bench.settings.gap_seconds, bench.settings.neighbour_runs
    theirs = await back_to_back(
        "neighbours: bare", bare.timed(bare.python(_PRINT[0]), _PRINT[1].encode()), runs=runs, gap_seconds=gap
    )
    lines: list[Line] = []
    series = [theirs]
    for title, command in _neighbour_commands().items():
        if isinstance(command, str):
            lines.append(Line(f"{title} print(1), p50", None, command))
            continue
        own = await back_to_back(title, bare.timed(command, _PRINT[1].encode()), runs=runs, gap_seconds=gap)
        series.append(own)
        lines.append(Line(f"{title} print(1), p50", own.p50 / theirs.p50, _versus(own, theirs)))
    return Measured(tuple(lines), tuple(series))


def _neighbour_commands() -> dict[str, list[str] | str]:
    """Return the command of each neighbour, or why there is none."""
    bwrap = shutil.which("bwrap")
    commands: dict[str, list[str] | str] = {"bwrap": "not installed"}
    if bwrap is not None:
        box = [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
        commands["bwrap"] = [*box, *bare.python(_PRINT[0])]
    return commands | _docker_commands()


def _docker_commands() -> dict[str, list[str] | str]:
    docker = shutil.which("docker")
    names = ("docker run", "docker exec")
    if docker is None:
        return dict.fromkeys(names, "not installed")
    image = _local_python_image(docker)
    if image is None:
        return dict.fromkeys(names, "no engine answers, or it has no image named python")
    run = [docker, "run", "--rm", "--network", "none", image, "python3", "-I", "-c", _PRINT[0]]
    containers = subprocess.run(
        [docker, "ps", "--filter", f"ancestor={image}", "--format", "{{.ID}}"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    running: list[str] | str = "no container of that image is running"
    if containers:
        running = [docker, "exec", containers[0], "python3", "-I", "-c", _PRINT[0]]
    return {"docker run": run, "docker exec": running}


def _local_python_image(docker: str) -> str | None:
    """Name a python image the engine already has; the bench pulls nothing."""
    try:
        done = subprocess.run(
            [docker, "image", "ls", "--format", "{{json .}}"], capture_output=True, text=True, check=False, timeout=20
        )
    except subprocess.TimeoutExpired:
        return None
    images = [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return next((f"python:{image['Tag']}" for image in images if image.get("Repository") == "python"), None)


def _median(promised: Promise, own: Series, theirs: Series) -> tuple[Line, ...]:
    return (judged(promised, own.p50 / theirs.p50, _versus(own, theirs)),)


def _versus(own: Series, theirs: Series) -> str:
    return f"{_ms(own.p50)} to {_ms(theirs.p50)}, n={len(own.seconds)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"
