"""A worker that is a seat in somebody else's service: it takes an instance when it runs, and gives it back after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from ringfence.attachment import Attachment
from ringfence.authority.caller import LOCAL
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import CapabilityBlocked, IsolationUnavailable, RingfenceError, TimedOut, Unavailable
from ringfence.isolation.aio.client import LAYERS, AIOSandboxClient
from ringfence.isolation.aio.following import Followed, follow
from ringfence.isolation.aio.luggage import Luggage, Unpacking, most_back, packing_back
from ringfence.isolation.aio.pool import AIOSandboxPool
from ringfence.isolation.aio.program import WORKSPACE, Place, Program, program, require_runtime, unpacking
from ringfence.isolation.stream.harvesting import harvest, lost
from ringfence.outcome import Layers, OnOutput, SandboxType
from ringfence.ports import EVERYTHING, NO_PROCESS, Begin, Ending, Harvest, Job, Keeping, WorkerLost, WorkerSpec
from ringfence.workspaces.place import check_names
from ringfence.workspaces.session import SessionWorkspace

_PIECE: Final = 8 << 20
_MOST_LIST: Final = 8 << 20
_MOVE_SECONDS: Final = 120.0
_ELSEWHERE: Final = (
    "this service has no /workspace for a run: its directories are ../inputs and ../artifacts of where it starts"
)


@dataclass(frozen=True, slots=True)
class _Back:
    """What came back of a run, or why nothing did."""

    taped: bytes = b""
    listed: bytes = b""
    why_not: str = ""


@dataclass(slots=True)
class AIOWorker:
    """Implements `ports.Worker` for instances of AIO services."""

    sandbox_id: str
    spec: WorkerSpec
    pool: AIOSandboxPool
    session: SessionWorkspace | None
    starts_pool: bool = False
    """Whether nobody else starts the pool."""
    backend: str = "aio"
    sandbox_type: SandboxType = SandboxType.AIO
    layers: Layers = LAYERS
    init_pid: int = NO_PROCESS
    worker_pid: int = NO_PROCESS
    door: int | None = None
    anchor_pid: int | None = None
    _files: dict[str, bytes] = field(default_factory=dict, init=False)
    _inputs: dict[str, bytes] = field(default_factory=dict, init=False)
    _luggage: Luggage = field(default_factory=Luggage, init=False)
    _back: _Back = field(default_factory=_Back, init=False)
    _generation: int = field(default=0, init=False)
    _used: bool = field(default=False, init=False)
    _notes: list[str] = field(default_factory=list, init=False)

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Remember `files` and `inputs`; they travel when there is an instance."""
        check_names(files)
        check_names(inputs, under="inputs")
        self._files.update(files)
        self._inputs.update(inputs)

    async def run(
        self,
        job: Job,
        on_output: OnOutput | None,
        begin: Begin | None = None,
        attached: Attachment | None = None,
    ) -> Ending:
        """Take an instance, send it everything, run the job there, and fetch what it left."""
        if attached is not None:
            raise IsolationUnavailable(
                "nobody can stay attached to a run in an AIO service",
                reason="no_attachment",
                fix="start processes natively, or talk to the service with AIOSandboxClient",
            )
        if job.masks:
            raise CapabilityBlocked(
                "secrets are not lent to an AIO service: nobody here sees what becomes of them there",
                fix="run it natively, or leave out secrets=",
            )
        if self._used:
            raise WorkerLost("a worker serves one run")
        self._used = True
        require_runtime(job.language)
        key = self._key()
        if self.starts_pool:
            await self.pool.start()
        client = await self.pool.acquire(key)
        try:
            return await self._run_in(client, job, on_output, begin)
        except WorkerLost:
            await asyncio.wrap_future(self.pool.report(key))
            raise
        finally:
            # what one run without a session left there is nobody's to find
            await self.pool.release(key, forget=self.spec.session_id is None)

    def _key(self) -> str:
        """Return the name the pool knows this run's session by; a run without one is a session of its own."""
        if self.spec.session_id is None:
            if not self.pool.makes_instances:
                raise IsolationUnavailable(
                    "the instances of this AIO pool cannot be made anew, so each is one session's for good",
                    fix="give a session_id, or the pool a starter=",
                )
            return self.sandbox_id
        return self.spec.session_id if self.spec.tenant == LOCAL else f"{self.spec.tenant}:{self.spec.session_id}"

    async def _run_in(
        self, client: AIOSandboxClient, job: Job, on_output: OnOutput | None, begin: Begin | None
    ) -> Ending:
        with _before_it_runs():
            place = await client.furnish()
        try:
            planned = program(job, place)
            with _before_it_runs():
                await self._send(client, place, planned)
            if begin is not None:
                await begin()
            with _before_it_runs():
                followed = await follow(client.bash, planned, job, on_output)
            self._back = await self._fetch(client, place, job.limits, followed)
        finally:
            with suppress(RingfenceError):
                await client.clear(place)
        if place.root != WORKSPACE:
            self._notes.append(_ELSEWHERE)
        return followed.ending

    async def _send(self, client: AIOSandboxClient, place: Place, planned: Program) -> None:
        packed = await asyncio.to_thread(self._pack, planned)
        there = f"{place.of('job')}/there.tar"
        for at in range(0, len(packed), _PIECE):
            await client.file.write(there, packed[at : at + _PIECE], append=at > 0)
        done = await client.bash.exec(unpacking(place), wait_seconds=_MOVE_SECONDS, hard_seconds=_MOVE_SECONDS)
        if done.status != "completed" or done.exit_code != 0:
            raise Unavailable(f"{client.shown} could not put the files of the run where they belong")

    def _pack(self, planned: Program) -> bytes:
        if self.session is not None:
            self._generation = self.session.generation()
        most = self.spec.disk_bytes
        return self._luggage.pack(self.session, self._files, self._inputs, planned.files, most)

    async def _fetch(self, client: AIOSandboxClient, place: Place, limits: Limits, followed: Followed) -> _Back:
        """Fetch what a run left; whatever goes wrong here, it has run, and its files are lost."""
        if followed.lost is not None:
            self._notes.append(f"the AIO service was lost, and with it how the run ended: {followed.lost}")
            return _Back(why_not="the AIO service was lost")
        with_session = self.session is not None
        command = packing_back(place.root, limits, with_session=with_session)
        try:
            done = await client.bash.exec(command, wait_seconds=_MOVE_SECONDS, hard_seconds=_MOVE_SECONDS)
            if done.status != "completed" or done.exit_code != 0:
                return _Back(why_not="the AIO service could not pack them")
            own = place.of("job")
            longest = most_back(limits, with_session=with_session)
            return _Back(
                await client.file.download(f"{own}/back.tar", longest=longest),
                await client.file.download(f"{own}/back.list", longest=_MOST_LIST),
            )
        except RingfenceError as error:
            return _Back(why_not=str(error))

    def is_fresh(self) -> bool:
        """The files of its session are read when it runs."""
        return True

    def left_files(self) -> bool:
        """Whether anything came back, or is lost."""
        return bool(self._back.taped or self._back.why_not)

    def harvest(self, limits: Limits, keeping: Keeping = EVERYTHING) -> Harvest:
        """Judge what came back as if a container had told of it; what is no tar file of ours is lost."""
        if self._back.why_not:
            found = lost(self._back.why_not)
        else:
            with_session = self.session is not None
            teller = Unpacking(self._back.taped, self._back.listed, self._luggage.sent, with_session=with_session)
            found = harvest(teller, self.session, self._generation, limits, keeping)
        return replace(found, notes=(*found.notes, *self._notes))

    def discard(self) -> None:
        """Let go of the session's files; the instance was given back when the run ended."""
        if self.session is not None:
            self.session.close()


@contextmanager
def _before_it_runs() -> Iterator[None]:
    """Let another worker take the job when the service is lost before any of it ran."""
    try:
        yield
    except (Unavailable, TimedOut) as error:
        raise WorkerLost(str(error)) from error
