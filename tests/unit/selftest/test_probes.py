"""A probe that finds nothing where there is no box would prove nothing where there is one: each is shown to bite."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.guarantees import GUARANTEES

from ringfence.capability.limits import Limits
from ringfence.selftest.corpus import CORPUS
from ringfence.selftest.escape import attempt
from ringfence.selftest.probe import MARK, Probe, Seen, Verdict, judge
from ringfence.selftest.stage import Stage, stage

ROOTS = {"mounts", "kernel_memory", "privileges", "namespaces", "memory_of_others"}
"""What an ordinary user cannot do outside a box either."""


@pytest.fixture(scope="module")
def host() -> Iterator[Stage]:
    with stage() as made:
        yield made


class Nowhere:
    """Runs a program as a plain child in one directory for all, believes what it is told, and collects carelessly."""

    def __init__(self, place: Path) -> None:
        self.work = place / "work"
        self.artifacts = place / "artifacts"
        self.work.mkdir()

    def __call__(self, program: str, given: str, limits: Limits) -> Seen:
        read, write = os.pipe()
        done = subprocess.run(
            [sys.executable, "-c", program, given],
            cwd=self.work,
            capture_output=True,
            timeout=50,
            check=False,
            pass_fds=(write,),
        )
        os.close(write)
        os.set_blocking(read, False)  # what it left running may hold the other end
        with open(read, "rb", buffering=0) as words:
            told = words.read() or b""
        code = 0 if b"EXIT 0" in told else done.returncode
        return Seen(done.stdout, code, None, done.stderr.decode(), tuple(self._collected()))

    def _collected(self) -> Iterator[bytes]:
        for path in self.artifacts.rglob("*") if self.artifacts.exists() else ():
            if path.is_file() and path.stat().st_size < 1 << 20:
                yield path.read_bytes()


@pytest.mark.parametrize("probe", CORPUS, ids=lambda probe: probe.name)
def test_a_probe_bites_where_there_is_no_box(probe: Probe, host: Stage, tmp_path: Path) -> None:
    if os.geteuid() != 0 and probe.name in ROOTS:
        pytest.skip("this run is an ordinary user's")
    found = attempt(probe, host, Nowhere(tmp_path))
    assert found.verdict is Verdict.GOT_THROUGH, found


def test_every_probe_has_a_name_of_its_own_and_a_guarantee_that_is_made() -> None:
    assert len({probe.name for probe in CORPUS}) == len(CORPUS)
    assert {probe.guarantee for probe in CORPUS} <= set(GUARANTEES)
    assert {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13} <= {probe.guarantee for probe in CORPUS}


PLAIN = Probe("plain", 1, "nothing", "")


@pytest.mark.parametrize(
    ("probe", "seen", "noticed", "verdict"),
    [
        (PLAIN, Seen(f"x\n{MARK}[]\n".encode()), (), Verdict.HELD),
        (PLAIN, Seen(f'{MARK}["a door"]\n'.encode()), (), Verdict.GOT_THROUGH),
        (PLAIN, Seen(f"{MARK}[]\n".encode()), ("a visitor",), Verdict.GOT_THROUGH),
        (PLAIN, Seen(f"{MARK}[]\n".encode(), artifacts=(b"the secret of the host",)), (), Verdict.GOT_THROUGH),
        (PLAIN, Seen(b"", 1, None, "Traceback"), (), Verdict.UNTRIED),
        (PLAIN, Seen(f"{MARK}nonsense\n".encode(), 0), (), Verdict.UNTRIED),
        (PLAIN, Seen(b"", None, "memory"), (), Verdict.HELD),
        (PLAIN, Seen(b"", 159), (), Verdict.HELD),
        (Probe("end", 13, "", "", exits_with=41), Seen(f"{MARK}[]\n".encode(), 0), (), Verdict.GOT_THROUGH),
        (Probe("end", 13, "", "", exits_with=41), Seen(f"{MARK}[]\n".encode(), 41), (), Verdict.HELD),
        (Probe("loud", 7, "", "", most_output=10), Seen(b"x" * 11), (), Verdict.GOT_THROUGH),
    ],
)
def test_what_was_seen_is_judged(probe: Probe, seen: Seen, noticed: tuple[str, ...], verdict: Verdict) -> None:
    assert judge(probe, (seen,), noticed, "the secret").verdict is verdict


def test_the_stage_is_taken_down() -> None:
    with stage() as made:
        bystander, directory = made.bystander, made.directory
    assert not directory.exists()
    with contextlib.suppress(ChildProcessError), pytest.raises(ProcessLookupError):
        os.kill(bystander, 0)
