"""Runs every probe in a real box of the chosen kind, through the same door as any program, and says what held."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.capability.limits import Limits
from ringfence.dataclass import replace
from ringfence.errors import RingfenceError, Unavailable
from ringfence.isolation.linux.seccomp.numbers import machine_named
from ringfence.oneline import run
from ringfence.selftest.corpus import CORPUS
from ringfence.selftest.probe import Attempt, Probe, Seen, Verdict, judge
from ringfence.selftest.stage import Stage, stage

if TYPE_CHECKING:
    from ringfence.outcome import ExecutionResult

_WALL_SECONDS = 30.0

Run = Callable[[str, str, Limits], Seen]
"""Runs a program with one argument under some limits, wherever that is."""


def try_to_escape(isolation: str, home: Path | None = None, only: Iterable[str] = ()) -> Iterator[Attempt]:
    """Try each probe in a box of this kind, and yield how it ended.

    Raises:
        Unavailable: There is no such box here.
    """
    wanted = frozenset(only)

    # an AIO service is no box that anybody here observed, and its instances are sessions'
    session, mode = ("selftest", "permissive") if isolation == "aio" else (None, "strict")

    def in_a_box(program: str, given: str, limits: Limits) -> Seen:
        return _seen(
            run(
                program,
                args=(given,),
                limits=limits,
                session_id=session,
                isolation=isolation,
                security_mode=mode,
                home=home,
            )
        )

    with ExitStack() as last:
        host = last.enter_context(stage())
        had_one = False
        for probe in CORPUS:
            if wanted and probe.name not in wanted:
                continue
            try:
                tried = attempt(probe, host, in_a_box)
            except Unavailable as refusal:
                if not had_one:
                    raise
                tried = _untried(probe, refusal)  # what looks like an attack goes to no box that is too weak for it
            had_one = True
            yield tried


def attempt(probe: Probe, host: Stage, run_it: Run) -> Attempt:
    """Try one probe, wherever `run_it` runs it.

    Raises:
        Unavailable: There is nowhere to run it.
    """
    host.noticed()
    given = json.dumps(host.given(dict(machine_named(os.uname().machine).numbers)))
    limits = replace(Limits(wall_seconds=_WALL_SECONDS), **probe.limits)
    try:
        runs = tuple(run_it(probe.text(each), given, limits) for each in (probe.program, probe.again) if each)
    except Unavailable:
        raise
    except RingfenceError as error:
        return _untried(probe, error)
    return judge(probe, runs, host.noticed(), host.secret)


def _untried(probe: Probe, why: RingfenceError) -> Attempt:
    return Attempt(probe, Verdict.UNTRIED, f"{why.code} {why.reason}: {why}"[:300])


def _seen(result: ExecutionResult) -> Seen:
    return Seen(
        result.stdout_raw,
        result.exit_code,
        result.killed_by,
        result.stderr,
        tuple(artifact.read() for artifact in result.artifacts),
    )
