"""What a crowd is bound by: boxes that a zygote builds, runs and ends, with nobody else doing anything.

No pool, no cgroup, no look at them, no policy and no record: what is left of a run when its host costs nothing. No
crowd can be faster than this, whatever is saved above it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from pathlib import Path

from ringfence.bench import bare
from ringfence.bench.bare import WrongOutput
from ringfence.bench.promise import Line
from ringfence.bench.subject import Bench, Measured
from ringfence.errors import RingfenceError
from ringfence.isolation.linux.outfit import outfit_in
from ringfence.isolation.linux.view import GUEST_ID
from ringfence.isolation.linux.workshop import HostEnds, open_ends
from ringfence.isolation.native import identity
from ringfence.isolation.native.fork_server import ForkServer
from ringfence.isolation.protocol import Kind, encode
from ringfence.ports import WorkerSpec

_CODE, _EXPECTED = "print(1)", b"1\n"
_JOB = {"language": "python", "code": _CODE, "args": [], "env": {}, "cpu_seconds": 60, "data_bytes": None}
_MESSAGE = encode(Kind.JOB, json.dumps(_JOB).encode()) + encode(Kind.START)
_TITLE = "boxes of the zygote alone, 16 at a time, per second"


async def boxes(bench: Bench) -> Measured:
    """Boxes built, run and ended by the zygote alone: no crowd can be faster; with half of bare's before and after."""
    settings = bench.settings
    call = bare.timed(bare.python(_CODE), _EXPECTED)
    half = max(settings.crowd_runs // 2, 1)
    try:
        line = _Line(bench.home)
    except RingfenceError as error:
        return Measured((Line(_TITLE, None, str(error)),))
    try:
        line.run(settings.crowd_callers, settings.crowd_callers)
        theirs = bare.crowd(call, half, settings.crowd_callers)
        taken = line.run(settings.crowd_runs, settings.crowd_callers)
        theirs += bare.crowd(call, half, settings.crowd_callers)
    finally:
        line.close()
    our_rate, their_rate = settings.crowd_runs / taken, 2 * half / theirs
    return Measured((Line(_TITLE, our_rate / their_rate, f"{our_rate:.0f} to {their_rate:.0f} per second"),))


class _Line:
    """A zygote, and the boxes of it that are under way."""

    def __init__(self, home: Path) -> None:
        self._server = ForkServer(outfit_in(home, WorkerSpec(), memory_is_counted=True))
        self._ends = select.epoll()
        self._boxes: dict[int, tuple[HostEnds, int]] = {}
        self._number = 0

    def run(self, count: int, at_once: int) -> float:
        """Return the seconds that `count` boxes take."""
        start = time.perf_counter()
        last = self._number + count
        while self._boxes or self._number < last:
            while self._number < last and len(self._boxes) < at_once:
                self._begin()
            for status, _ in self._ends.poll():
                self._end(status)
        return time.perf_counter() - start

    def _begin(self) -> None:
        host, inside = open_ends()
        offset = GUEST_ID if self._server.base_id is None else identity.run_offset(self._number)
        self._number += 1
        message = self._server.request(f"rf-{self._number}", WorkerSpec(), offset)
        streams = (inside.stdin, inside.stdout, inside.stderr)
        init = self._server.spawn(message, (inside.status.fileno(), inside.job.fileno(), *streams))
        inside.close()
        host.job.sendall(_MESSAGE)
        self._boxes[host.status.fileno()] = host, init
        self._ends.register(host.status.fileno(), select.EPOLLIN)

    def _end(self, status: int) -> None:
        host, init = self._boxes.pop(status)
        self._ends.unregister(status)
        said = os.read(host.streams.stdout, 1 << 16)
        signal.pidfd_send_signal(init, signal.SIGKILL)
        os.close(init)
        host.close()
        if said != _EXPECTED:
            raise WrongOutput(f"a box of the zygote alone said {said!r}")

    def close(self) -> None:
        """End the zygote, and with it what is left of its boxes."""
        self._ends.close()
        self._server.close()
