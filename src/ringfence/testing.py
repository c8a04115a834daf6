"""Stand-ins for programs that use Ringfence and want to test themselves without a box: scripted, and never isolating.

Each implements a port of `ringfence.ports` in full, so that what works with it works with the real part. None of them
runs code: a program under test gets the answer its author wrote down.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringfence.attachment import Attachment
from ringfence.authority.caller import Caller
from ringfence.authority.grant import Grant
from ringfence.authority.levels import RiskLevel
from ringfence.authority.local import LocalAuthority
from ringfence.authority.policy import BUILT_IN, PolicySnapshot
from ringfence.authority.profile import Profile
from ringfence.budgets.admission import Admission
from ringfence.budgets.memory import MemoryMeter
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import InternalError, IsolationUnavailable
from ringfence.evidence.documents import Document
from ringfence.evidence.records import Members
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.identifiers import TimeOrdered
from ringfence.operation import CodeRun
from ringfence.operation.form import Operation
from ringfence.orchestrator.pipeline import Orchestrator
from ringfence.outcome import ExecutionResult, Layers, OnOutput, SandboxType, Status
from ringfence.ports import (
    EVERYTHING,
    AlsoWrite,
    Begin,
    Ending,
    EvidenceSink,
    ExecCtx,
    Executor,
    Harvest,
    Job,
    Keep,
    Keeping,
    WorkerSpec,
)
from ringfence.risk.assessment import RiskAssessment


def ended(
    stdout: bytes = b"",
    stderr: bytes = b"",
    *,
    exit_code: int | None = 0,
    signal: int | None = None,
    killed_by: str | None = None,
) -> Ending:
    """Return how a guest ended, with everything that is rarely of interest filled in."""
    return Ending(
        exit_code=exit_code,
        signal=signal,
        killed_by=killed_by,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=len(stdout),
        stderr_bytes=len(stderr),
        elapsed_seconds=0.001,
        cpu_ms=1,
        memory_peak_bytes=None,
    )


def standard_profile(operation: Operation, limits: Limits = Limits(), policy: PolicySnapshot = BUILT_IN) -> Profile:
    """Return what `operation` gets under a policy, by default the built-in one, with just these limits."""
    authority = LocalAuthority(lambda: policy, _grant)
    return replace(authority.profile(operation, call_id="call_test", caller=Caller("test", "test")), limits=limits)


def _grant(policy: PolicySnapshot, tool: str, role: str | None, call_id: str, caller: Caller) -> Grant:
    view = policy.view(tool, role)
    return Grant(caller.tenant, caller.subject_id, tool, call_id, view.capabilities, 1 << 52, view.budget, "test")


def orchestrator_over(
    *executors: Executor[Any, Any], evidence: EvidenceSink | None = None, keep: Keep | None = None
) -> Orchestrator:
    """Return the real pipeline in front of stand-ins, one a domain; its guard takes every program for harmless."""
    guard = PolicyGuard(lambda _code, language: RiskAssessment(RiskLevel.SAFE, language))
    admission = Admission(MemoryMeter())
    by_domain = {executor.capability_domain(): _always(executor) for executor in executors}
    sink = evidence or MemorySink()
    return Orchestrator(by_domain, TimeOrdered(), guard, FrozenClock(), lambda: admission, sink, keep=keep)


def _always(executor: Executor[Any, Any]) -> Callable[[], Executor[Any, Any]]:
    return lambda: executor


@dataclass
class MemorySink:
    """Implements `ports.EvidenceSink`: keeps every record in a list, which is no proof of anything."""

    records: list[Members] = field(default_factory=list)
    documents: dict[str, Document] = field(default_factory=dict)

    async def note(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Keep the beginning of an execution that nobody looks for yet."""
        await self.begin(ev, documents)

    async def begin(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Keep the beginning of an execution, and the documents that it names."""
        self.records.append(ev)
        self.documents.update((document.digest, document) for document in documents)

    async def on_disk(self) -> None:
        """Return at once: nothing is kept longer than this process."""

    async def end(self, ev: Members, also: AlsoWrite | None = None) -> None:
        """Keep the end of an execution; there is no transaction that `also` could write in."""
        if also is not None:
            raise InternalError("evidence in memory shares no transaction")
        self.records.append(ev)

    async def record(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Keep a record that has no end of its own."""
        self.records.append(ev)
        self.documents.update((document.digest, document) for document in documents)


class FrozenClock:
    """A clock that moves only when told to; implements `ports.Clock`, and is called where seconds are wanted."""

    def __init__(self, now: float = 1000.0) -> None:
        """Start at `now` seconds."""
        self._now = now

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return round(self._now * 1000)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self._now += seconds


@dataclass
class ScriptedExecutor:
    """Implements `ports.Executor`: answers with what `answer` returns, and remembers what it was asked."""

    answer: Callable[[CodeRun], ExecutionResult] = lambda _: ExecutionResult(Status.SUCCEEDED, exit_code=0)
    asked: list[tuple[CodeRun, Profile]] = field(default_factory=list)

    def capability_domain(self) -> str:
        """Stand in for whatever runs code."""
        return "code"

    async def execute(self, ctx: ExecCtx, operation: CodeRun) -> ExecutionResult:
        """Return the scripted answer; its output is passed on first."""
        await ctx.begun()
        self.asked.append((operation, ctx.profile))
        result = self.answer(operation)
        if ctx.on_output is not None:
            for name, data in (("stdout", result.stdout_raw), ("stderr", result.stderr_raw)):
                if data:
                    ctx.on_output(name, data)
        return replace(result, exec_id=ctx.exec_id)


AS_A_BOX_LOOKS = Layers(
    namespaces=("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"),
    capabilities_empty=True,
    no_new_privs=True,
    seccomp_filters=2,
    host_uid=1000,
    notes=("scripted: nothing was isolated, because nothing ran",),
)
"""What a stand-in shows the pipeline, which would refuse anything less."""


@dataclass(eq=False)
class ScriptedWorker:
    """Implements `ports.Worker`: ends as the backend's script says, and counts what was done to it."""

    sandbox_id: str
    spec: WorkerSpec
    script: Callable[[Job], Ending]
    harvested: Harvest = field(default_factory=Harvest)
    backend: str = "scripted"
    sandbox_type: SandboxType = SandboxType.NATIVE
    layers: Layers = AS_A_BOX_LOOKS
    init_pid: int = 0
    worker_pid: int = 0
    door: int | None = None
    anchor_pid: int | None = None
    placed: dict[str, bytes] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    discarded: int = 0

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Remember `files` and `inputs`."""
        self.placed.update({**files, **{f"inputs/{name}": content for name, content in inputs.items()}})

    async def run(
        self,
        job: Job,
        on_output: OnOutput | None,
        begin: Begin | None = None,
        attached: Attachment | None = None,
    ) -> Ending:
        """Do what the script says: return an ending, or raise; nobody can be attached to what only seems to run."""
        if attached is not None:
            raise IsolationUnavailable("a scripted worker has nothing to stay attached to", reason="no_attachment")
        if begin is not None:
            await begin()
        self.jobs.append(job)
        ending = self.script(job)
        if on_output is not None and ending.stdout:
            on_output("stdout", ending.stdout)
        return ending

    def is_fresh(self) -> bool:
        """Stay fresh."""
        return True

    def left_files(self) -> bool:
        """Always harvest what the script says."""
        return True

    def harvest(self, limits: Limits, keeping: Keeping = EVERYTHING) -> Harvest:  # noqa: ARG002  as every worker
        """Return what the script left."""
        return self.harvested

    def discard(self) -> None:
        """Count."""
        self.discarded += 1


class ScriptedBackend:
    """Implements `ports.Backend` in memory; safe to use from any thread."""

    name = "scripted"
    fixes_limits = False
    shares_memory = False

    def __init__(
        self,
        script: Callable[[Job], Ending] = lambda _: ended(),
        *,
        on_start: Callable[[WorkerSpec], None] = lambda _: None,
        harvest: Harvest = Harvest(),  # noqa: B008  frozen
    ) -> None:
        """Call `on_start` before each worker is made: it may block, and what it raises is the start's failure."""
        self._script = script
        self._on_start = on_start
        self._harvest = harvest
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self.started: list[ScriptedWorker] = []
        self.attempts = 0
        self.closed = False

    def start(self, spec: WorkerSpec) -> ScriptedWorker:
        """Make a worker."""
        with self._lock:
            self.attempts += 1
        self._on_start(spec)
        with self._lock:
            worker = ScriptedWorker(f"scripted-{next(self._numbers)}", spec, self._script, self._harvest)
            self.started.append(worker)
            return worker

    def alive(self) -> list[ScriptedWorker]:
        """List the workers that were not discarded."""
        with self._lock:
            return [worker for worker in self.started if not worker.discarded]

    def tidy(self) -> bool:
        """Leave nothing behind."""
        return True

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True
