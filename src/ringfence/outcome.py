"""What came of an operation: of a run the guest's own doing, never as an exception; of a broker the digest view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from ringfence.capability import budget
from ringfence.dataclass import dataclass, field, replace

if TYPE_CHECKING:
    from ringfence.authority.taint import Tainted


class Status(StrEnum):
    """Where a run stands or how it ended."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    CANCELLED = "cancelled"
    DENIED = "denied"
    ERROR = "error"


class SandboxType(StrEnum):
    """Which kind of box ran the code."""

    NATIVE = "native"
    BWRAP = "bwrap"
    DOCKER = "docker"
    GVISOR = "gvisor"
    AIO = "aio"
    SUBPROCESS = "subprocess"


@dataclass(frozen=True, slots=True)
class Mount:
    """One directory of the workspace, and where it comes from."""

    source: str
    target: str
    mode: str


@dataclass(frozen=True, slots=True)
class Container:
    """What an engine was told to make a box from: enough to make another like it."""

    image: str
    image_digest: str
    argv: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        mounts = [{"source": each.source, "target": each.target, "mode": each.mode} for each in self.mounts]
        return {
            "image": self.image,
            "image_digest": self.image_digest,
            "argv": list(self.argv),
            "mounts": mounts,
        }

    @classmethod
    def from_dict(cls, form: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returns."""
        mounts = tuple(Mount(each["source"], each["target"], each["mode"]) for each in form["mounts"])
        return cls(form["image"], form["image_digest"], tuple(form["argv"]), mounts)


@dataclass(frozen=True, slots=True)
class Layers:
    """The isolation the host observed on the sealed worker, from outside it."""

    namespaces: tuple[str, ...] = ()
    capabilities_empty: bool = False
    no_new_privs: bool = False
    seccomp_filters: int = 0
    landlock_abi: int = 0
    cgroup: str = "none"
    host_uid: int = -1
    memory_limit: str = "none"
    notes: tuple[str, ...] = ()
    chosen: str = ""
    """Why it was a box of this kind."""
    container: Container | None = None
    """What it was made from, where an engine made it."""
    runtime: str = ""
    """The interpreter of this machine that it has, such as `python 3.11.2`; an image brings its own."""

    def to_dict(self) -> dict[str, Any]:
        """Return the layers as plain JSON values."""
        return {
            "namespaces": list(self.namespaces),
            "capabilities_empty": self.capabilities_empty,
            "no_new_privs": self.no_new_privs,
            "seccomp_filters": self.seccomp_filters,
            "landlock_abi": self.landlock_abi,
            "cgroup": self.cgroup,
            "host_uid": self.host_uid,
            "memory_limit": self.memory_limit,
            "notes": list(self.notes),
            "chosen": self.chosen,
            "container": None if self.container is None else self.container.to_dict(),
            "runtime": self.runtime,
        }

    @classmethod
    def from_dict(cls, form: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returns; members that are not known are another release's, and left out."""
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in form.items()
            if name in cls.__slots__
        }
        if known.get("container") is not None:
            known["container"] = Container.from_dict(known["container"])
        return cls(**known)


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file the guest left in `/workspace/artifacts`."""

    path: str
    size: int
    sha256: str
    content: bytes = field(repr=False, default=b"")

    def read(self) -> bytes:
        """Return the file's bytes."""
        return self.content

    def to_dict(self) -> dict[str, Any]:
        """Return the description without the content."""
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What else is known of the files a run left, beside the names in `files_written`."""

    sizes: tuple[int, ...] = ()
    """Of `files_written`, in its order."""
    deleted: tuple[str, ...] = ()
    """What of its session a run deleted; a directory stands for everything below it."""
    uncollected: tuple[tuple[str, str], ...] = ()
    """What lay among the artifacts and was not taken over: its path, and why."""
    complete: bool = True
    """Whether nothing was left out for being too much or too deep."""
    kept: bool = True
    """Whether a session kept what was written; false where it is denied, pending, or would outgrow its quota."""
    denied: tuple[str, ...] = ()
    """What of it the policy lets nobody change."""
    excess: tuple[int, int] | None = None
    """How many paths and bytes a run changed, where that was more than one may."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What a run changed in its project and nobody has kept yet; paths are relative to `/workspace/work`.

    A directory has a slash at its end. `complete` is false where there was more than `added`, `modified`, `deleted` and
    `diff` show; committing takes all of it.
    """

    exec_id: str
    added: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    diff: str = field(repr=False, default="")
    """The changes of text as a unified diff."""
    complete: bool = True
    size: int = 0
    """How many bytes it would write."""
    expires_at_ms: int | None = None
    """Until when it waits to be committed; None where nothing waits, and this is all there is."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "exec_id": self.exec_id,
            "added": list(self.added),
            "modified": list(self.modified),
            "deleted": list(self.deleted),
            "diff": self.diff,
            "complete": self.complete,
            "size": self.size,
            "expires_at_ms": self.expires_at_ms,
        }

    @classmethod
    def from_dict(cls, form: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returns."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in form.items()
        }
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run's connections went, or were not let; alike ones are one line, with `count`."""

    host: str
    port: int
    decision: str
    """`allowed`, `denied` by the rules, or `failed` by the network."""
    reason: str = ""
    method: str = ""
    """Of a request that was read, or `CONNECT`; nobody sees what is in a tunnel that was not opened."""
    address: str = ""
    count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    secret: str = ""
    """The name of the secret that was put in on the way out, or was not."""


@dataclass(frozen=True, slots=True)
class Network:
    """All that went through the one way out of a box."""

    destinations: tuple[Destination, ...] = ()
    not_shown: int = 0
    """How many connections, of too many different ones, are only in the sums."""
    complete: bool = True

    @property
    def bytes_in(self) -> int:
        """How many bytes came in."""
        return sum(place.bytes_in for place in self.destinations)

    @property
    def bytes_out(self) -> int:
        """How many bytes went out."""
        return sum(place.bytes_out for place in self.destinations)


@dataclass(frozen=True, slots=True)
class Budget(budget.Budget):
    """What a run used, in the terms budgets are written in; what nobody counted is absent."""

    calls: int = 1
    bytes_out: int = 0
    bytes_in: int = 0
    cpu_ms: int = 0
    gpu_ms: int = 0
    file_count: int = 0
    wall_ms: int = 0
    memory_peak_bytes: int | None = None


@dataclass(frozen=True)
class ExecutionResult:
    """The result of one run; `interfaces.md` names every field, and they keep their meaning."""

    status: Status
    exit_code: int | None = None
    stdout_raw: bytes = field(repr=False, default=b"")
    stderr_raw: bytes = field(repr=False, default=b"")
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    stdout_left_out: int = 0
    """How many of `stdout_bytes` lay between the head and the tail that were kept; `stdout` has a line there."""
    stderr_left_out: int = 0
    killed_by: str | None = None
    error: str | None = None
    error_code: str | None = None
    reason: str | None = None
    elapsed_ms: float = 0.0
    cpu_ms: int = 0
    memory_peak_bytes: int | None = None
    sandbox_id: str = ""
    sandbox_type: SandboxType = SandboxType.NATIVE
    backend: str = "native"
    isolation: Layers = Layers()
    artifacts: tuple[Artifact, ...] = ()
    files_written: tuple[str, ...] = ()
    changes: FileChanges = FileChanges()
    pending: Pending | None = None
    """What the run changed in its project, where that was not kept at once."""
    tasks_peak: int | None = None
    """The most processes and threads the guest had at one time; None where nobody counted for this run alone."""
    notes: tuple[str, ...] = ()
    exec_id: str = ""
    evidence_id: str | None = None
    risk: str | None = None
    value: str | None = None
    """Of a cell, what its last line evaluated to, as text; the interpreter's own word."""
    network: Network | None = None
    """What went through the way out, of a run that had one."""
    tainted: Tainted | None = None
    """What untrusted content it comes after, or reached for itself, under a policy that asks."""
    kept_in: str | None = None
    """The directory of its workspace in which its output and artifacts are kept, of a run in a session."""
    digests: Mapping[str, Any] | None = None
    """What `out` says of output that the policy keeps out of results."""

    def withheld(self) -> Self:
        """Return the result without what the program said: what is left tells it from any other, and where it is."""
        digests = {**self.out, "preview": ""}
        return replace(self, stdout_raw=b"", stderr_raw=b"", value=None, digests=digests)

    @property
    def success(self) -> bool:
        """Whether the program ran to its end and exited with 0."""
        return self.status is Status.SUCCEEDED

    @property
    def timed_out(self) -> bool:
        """Whether the wall-clock or cpu-time limit ended the run."""
        return self.status is Status.TIMED_OUT

    @property
    def killed(self) -> bool:
        """Whether the run was ended from outside, for whatever reason."""
        return self.killed_by is not None

    @cached_property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout_raw.decode("utf-8", "replace")

    @cached_property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr_raw.decode("utf-8", "replace")

    @property
    def out(self) -> Mapping[str, Any]:
        """A digest view of the output, for records that must not hold content."""
        if self.digests is not None:
            return self.digests
        import hashlib  # not at the top: it is slow to import, and most runs are not asked for digests

        digest = hashlib.sha256(self.stdout_raw).hexdigest()
        handle = f"fs:0+{len(self.stdout_raw)}:{digest}:{self.kept_in}/stdout.txt"
        return {
            **({} if self.kept_in is None else {"handle": handle}),
            "stdout_sha256": digest,
            "stderr_sha256": hashlib.sha256(self.stderr_raw).hexdigest(),
            "stdout_bytes": self.stdout_bytes,
            "stderr_bytes": self.stderr_bytes,
            "preview": self.stdout[:200],
        }

    @property
    def used(self) -> Budget:
        """What the run used, in the terms budgets are written in."""
        return Budget(
            cpu_ms=self.cpu_ms,
            wall_ms=round(self.elapsed_ms),
            memory_peak_bytes=self.memory_peak_bytes,
            bytes_out=self.stdout_bytes + self.stderr_bytes + (0 if self.network is None else self.network.bytes_out),
            bytes_in=0 if self.network is None else self.network.bytes_in,
            file_count=len(self.files_written) + len(self.artifacts),
        )


@dataclass(frozen=True, slots=True)
class Digest:
    """What stands for content in every record: enough to compare it, nothing of it."""

    algo: str
    b64: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> Digest:
        """Return the digest of `content`."""
        import base64  # not at the top: a run of code makes none
        import hashlib

        return cls("sha256", base64.b64encode(hashlib.sha256(content).digest()).decode(), len(content))

    def to_dict(self) -> dict[str, str | int]:
        """Return the digest as plain JSON values."""
        return {"algo": self.algo, "b64": self.b64, "size": self.size}


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that was touched: where, and how much; never the content."""

    kind: str
    meta: Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class BrokerOutcome:
    """What came of one brokered operation; `out` may go into any record, `content` only where policy allows."""

    operation: str
    out: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    content: bytes | None = field(repr=False, default=None)
    used: Budget = field(default_factory=Budget)
    effects: tuple[Effect, ...] = ()
    exec_id: str = ""
    evidence_id: str | None = None
    tainted: Tainted | None = None
    """As in `ExecutionResult`."""


def pending_of(told: BrokerOutcome) -> list[Pending]:
    """Read what waits from the answer to the question; without their diffs where content is not given out."""
    import json  # not at the top: most outcomes are no such answer

    forms = told.out["proposals"] if told.content is None else json.loads(told.content)
    return [Pending.from_dict(form) for form in forms]


Outcome = ExecutionResult | BrokerOutcome

OnOutput = Callable[[str, bytes], None]
"""Called with the stream name (`stdout` or `stderr`) and each chunk, in order, as it arrives.

All of it, also what the result leaves out: whoever keeps what he hears has to bound it himself.
"""
