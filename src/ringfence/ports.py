"""What the core asks of the world; everything that acts implements one of these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from ringfence.authority.caller import LOCAL
from ringfence.authority.levels import Commit
from ringfence.authority.profile import Profile
from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.operation import Language
from ringfence.outcome import Artifact, FileChanges, Layers, Network, OnOutput, Pending, SandboxType

if TYPE_CHECKING:
    from ringfence.attachment import Attachment
    from ringfence.authority.credential import Credential
    from ringfence.authority.grant import Grant
    from ringfence.authority.issuer_key import IssuerKey, SigningKey
    from ringfence.authority.narrowing import Narrowing
    from ringfence.authority.taint import Tainted
    from ringfence.capability.budget import Budget
    from ringfence.evidence.documents import Document
    from ringfence.evidence.records import Members
    from ringfence.masking import Masks
    from ringfence.operation.form import Operation
    from ringfence.outcome import Outcome

_DEFAULT = Limits()
_NO_CHANGES = FileChanges()
_Asked = TypeVar("_Asked", contravariant=True)
_Answer = TypeVar("_Answer", covariant=True)


Begin = Callable[[], "Awaitable[None]"]
"""Makes durable that an execution begins; asked again, it has been done."""


def _never() -> bool:
    return False


def _now(act: Callable[[], None]) -> None:
    act()


@dataclass(frozen=True, slots=True)
class ExecCtx:
    """What an executor is told beside the operation: which execution it is, what holds for it, and whose it is."""

    exec_id: str
    profile: Profile
    session_id: str | None = None
    scope: str = ""
    """Who shares temporary space: what is taken under one scope is seen under no other."""
    on_output: OnOutput | None = None
    envelope_id: str = ""
    """What the evidence of this execution is called."""
    evidence: EvidenceSink | None = None
    """Where an executor writes down what the pipeline cannot see; beginning and end are none of its business."""
    reserved: Budget | None = None
    """What was reserved for it, where any budget bounds it."""
    most_output: int | None = None
    """How many bytes it may say before it is ended, where a budget bounds that."""
    begin: Begin | None = None
    """To be awaited before anything of the operation happens; whoever gets ready first, gets ready meanwhile."""
    note: Begin | None = None
    """The same for what nobody sees before `begin` was awaited too: it is written, and the disk takes it meanwhile."""
    afterwards: Callable[[Callable[[], None]], None] = _now
    """Has something done once the end is written: what nobody waits for must not stand in its way."""
    cancelled: Callable[[], bool] = _never
    """Whether nobody waits for it any more; for what works on in a thread."""
    attached: Attachment | None = None
    """Who stays with the run while it runs; a plain run has nobody."""
    reached: list[Network] = field(default_factory=list)
    """Where its connections went, for the record of a run that ends without a result."""

    async def begun(self) -> None:
        """Have it written down that the execution begins, where anybody writes it down."""
        if self.begin is not None:
            await self.begin()

    def session(self) -> str:
        """Return the session whose files are meant.

        Raises:
            InvalidRequest: The call is of no session, and so has no workspace.
        """
        if self.session_id is None:
            raise InvalidRequest(
                "without a session there is no workspace", reason="invalid_session_id", fix="give a session_id"
            )
        return self.session_id


class Executor(Protocol[_Asked, _Answer]):
    """Carries out the operations of one domain."""

    def capability_domain(self) -> str:
        """Return the domain: `code`, `fs`, `tmp`, `proc`, `net.http` or `browser`."""
        ...

    async def execute(self, ctx: ExecCtx, operation: _Asked) -> _Answer:
        """Carry out `operation`, after `ctx.begun()`; the guest's failure is in the result, ours is raised."""
        ...


class Clock(Protocol):
    """What time it is for everything that expires."""

    def now_ms(self) -> int:
        """Return wall time, in milliseconds since the epoch."""
        ...


class Identifiers(Protocol):
    """Where new names come from."""

    def new(self, prefix: str) -> str:
        """Return a name never given before; later ones sort after earlier ones."""
        ...


class GrantCodec(Protocol):
    """Turns grants into tokens that anybody can narrow and nobody can widen, and reads them back."""

    def new_key(self) -> tuple[bytes, bytes]:
        """Return the private and the public half of a fresh key."""
        ...

    def encode(self, grant: Grant, key: SigningKey) -> str:
        """Return `grant` as a token, signed."""
        ...

    def attenuate(self, token: str, narrowing: Narrowing) -> str:
        """Return a token that also takes away `narrowing`; needs no key and asks nobody.

        Raises:
            Denied: It is no token, or not as it was signed.
            InvalidRequest: The narrowing makes it longer than tokens may be.
        """
        ...

    def peek(self, token: str) -> Credential:
        """Read a token that is whole, whoever signed it: to show it, never to act on it.

        Raises:
            Denied: It is no token, or not as it was signed.
        """
        ...

    def decode(self, token: str, find: Callable[[str], IssuerKey | None]) -> Credential:
        """Read a token signed by the key it names; what it allows is the meet of all its blocks.

        Raises:
            Denied: It is no token, its key is unknown or another, or it is not as it was signed.
        """
        ...


class RevocationWatcher(Protocol):
    """Knows what was revoked, by anybody, until this very moment."""

    def is_revoked(self, grant: Grant | Credential) -> bool:
        """Whether the grant, a block of it, its subject or its key was revoked.

        Raises:
            Denied: Nobody can tell, which counts as revoked.
        """
        ...


AlsoWrite = Callable[[Any], None]
"""Writes something else with the cursor of a record's transaction: both happen, or neither."""


class EvidenceSink(Protocol):
    """Where every execution is written down before it starts and when it is over.

    What is written outlives every process of this machine; only what is on the disk outlives a loss of power. `ev` is
    what `ringfence.evidence.records` makes. What cannot be written raises Unavailable, and must not happen.
    """

    async def note(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Write down that an execution starts which nobody looks for before it ends, or has lasted for a moment."""
        ...

    async def begin(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Write down that an execution starts, where everybody finds it, and keep the documents that it names."""
        ...

    async def on_disk(self) -> None:
        """Return when all that was written before is on the disk."""
        ...

    async def end(self, ev: Members, also: AlsoWrite | None = None) -> None:
        """Write down how an execution ended, and whatever `also` writes with it; the disk follows at once."""
        ...

    async def record(self, ev: Members, documents: Sequence[Document] = ()) -> None:
        """Put on the disk what has no end of its own: a refusal, a consent, a change of the rules."""
        ...


class Taints(Protocol):
    """Who has reached for untrusted content, for every process that shares the evidence; a mark is there for good."""

    async def found(self, tenant: str, names: Sequence[str]) -> Mapping[str, Tainted]:
        """Return the marks on any of the names, as they are now.

        Raises:
            Unavailable: Nobody can tell, so nothing may happen.
        """
        ...

    async def mark(self, tenant: str, names: Sequence[str], tainted: Tainted) -> None:
        """Put a mark on the names, durably; an older one stays.

        Raises:
            Unavailable: It cannot be written, so nothing may happen.
        """
        ...


Keep = Callable[["Members", "Members", "Operation", "Outcome"], "Awaitable[Outcome]"]
"""Keeps what came of an execution beside its evidence: told how it began and ended, it adds to the end what it kept."""

StillGranted = Callable[[], None]
"""Raises what refuses a grant that was revoked, or whose time is over, since an operation was admitted under it."""


class CallRegister(Protocol):
    """Remembers which calls are open and which are over, as long as a grant for them could be presented."""

    def spend(self, credential: Credential) -> None:
        """Count one operation of the grant's call; the first opens it.

        Raises:
            QuotaExceeded: The grant allows no more.
            Denied: The call is closed: the grant is replayed.
        """
        ...

    def close(self, credential: Credential) -> None:
        """End the grant's call, whether or not anything was spent in it."""
        ...

    def is_closed(self, credential: Credential) -> bool:
        """Whether the grant's call is over."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a parked worker must have been built with, because a sealed one can no longer be given it."""

    runtime: Language = Language.PYTHON
    packages: str | None = None
    preload: tuple[str, ...] = ()
    session_id: str | None = None
    tenant: str = LOCAL
    """Whose session it is; without one, a worker is nobody's until it has its job."""
    disk_bytes: int = _DEFAULT.disk_bytes
    inodes: int = _DEFAULT.inodes
    open_files: int = _DEFAULT.open_files
    file_bytes: int = _DEFAULT.file_bytes
    pids: int = _DEFAULT.pids
    memory_bytes: int | None = None
    """The most memory it will ever have, where that is fixed when it is started; None where a run brings its own."""
    cpus: float | None = None
    terminal: bool = False
    """Whether it can open a terminal, of the box's own; what nobody looks at has none."""
    egress: bool = False
    """Whether there is a way out of it: a socket that listens on its loopback and is held by the host's proxy."""


@dataclass(frozen=True, slots=True)
class Job:
    """The one thing a worker is told."""

    language: Language
    code: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes
    limits: Limits
    most_output: int | None = None
    """After how many bytes of output it is ended; None is never, and what is too much is cut."""
    cwd: str | None = None
    """The directory it starts in, where that is not the usual one."""
    masks: Masks | None = None
    """What of its output nobody may see."""
    tenant: str = LOCAL
    """Whose it is, where what all guests share is shared out by tenants."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a guest ended, as seen from outside it."""

    exit_code: int | None
    signal: int | None
    killed_by: str | None
    stdout: bytes
    stderr: bytes
    stdout_bytes: int
    stderr_bytes: int
    elapsed_seconds: float
    cpu_ms: int
    memory_peak_bytes: int | None
    stdout_left_out: int = 0
    """How many bytes lay between the head and the tail that `stdout` has; a line in it says so."""
    stderr_left_out: int = 0
    tasks_peak: int | None = None
    """The most processes and threads the guest had at one time; None where nobody counted for this run alone."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """The files a dead guest left behind."""

    artifacts: tuple[Artifact, ...] = ()
    files_written: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    changes: FileChanges = _NO_CHANGES
    pending: Pending | None = None
    """What of a session's work directory was changed and not kept at once."""
    changed: bool = False
    """Whether a session's work directory is no longer what the next worker was parked on."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """What becomes of the files a run leaves: which of them may stay, and whether a session takes them over at once."""

    work: Callable[[str], bool] | None = None
    """Tells of each file by its path in the area whether it may stay; nothing is every file."""
    artifacts: Callable[[str], bool] | None = None
    exec_id: str = ""
    """Which execution it was: a proposal is called after it."""
    commit: Commit = Commit.ALWAYS
    denials: Denials = NO_DENIALS
    """What nobody may change."""
    masks: Masks | None = None
    """What may stay in no file."""


EVERYTHING: Final = Keeping()


NO_PROCESS: Final = (1 << 31) - 1
"""No process has this number: whoever signals it hurts nobody. With -1 it would be every process there is."""


class Worker(Protocol):
    """A box that is built, sealed and waiting; it serves one run and is destroyed."""

    sandbox_id: str
    backend: str
    sandbox_type: SandboxType
    layers: Layers
    spec: WorkerSpec
    init_pid: int
    worker_pid: int
    door: int | None
    """Where the host accepts what the guest connects to, if its spec asked for a way out and this kind has one."""

    @property
    def anchor_pid(self) -> int | None:
        """The process that only shares the worker's memory, if this kind has one; whoever counts leaves it out."""
        ...

    def place(self, files: Mapping[str, bytes], inputs: Mapping[str, bytes]) -> None:
        """Put `files` into the work directory and `inputs` into the read-only one."""
        ...

    async def run(
        self,
        job: Job,
        on_output: OnOutput | None,
        begin: Begin | None = None,
        attached: Attachment | None = None,
    ) -> Ending:
        """Hand over the job and stay with it until every process of the box is gone.

        `begin` is awaited when the worker has all but the word to start; nothing of the job happens before it returns,
        and nothing at all when it raises. With somebody `attached` the guest's input stays open for him.

        Raises:
            WorkerLost: The worker failed before any guest code ran.
        """
        ...

    def is_fresh(self) -> bool:
        """Whether the files of its session have not changed since it was parked."""
        ...

    def left_files(self) -> bool:
        """Whether there is anything to harvest; cheap, unlike harvesting."""
        ...

    def harvest(self, limits: Limits, keeping: Keeping = EVERYTHING) -> Harvest:
        """Read what the dead guest left, and keep a session's changes as `keeping` says: all of them or none."""
        ...

    def discard(self) -> None:
        """Kill whatever is left and free everything; safe to call at any time, once."""
        ...


class Backend(Protocol):
    """A kind of isolation: it only knows how to start a parked worker."""

    name: str

    @property
    def fixes_limits(self) -> bool:
        """Whether memory and processors are bounded when a worker starts, so that its spec has to say them."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether workers have most of their memory in common, so that one more parked costs little."""
        ...

    def start(self, spec: WorkerSpec) -> Worker:
        """Build and seal one worker; blocks for some milliseconds.

        Raises:
            IsolationUnavailable: A promised layer cannot be had.
        """
        ...

    def tidy(self) -> bool:
        """Remove what the kernel had not let go of before; True when nothing is left of any run that is over."""
        ...

    def close(self) -> None:
        """End everything this backend started."""
        ...


class WorkerLost(Exception):
    """A worker failed before any guest code ran; another one can take the job."""
