"""The broker of temporary space: sized when it is taken, seen by one call alone, gone when the call is over.

A space is a directory that no box sees and only the file broker writes to, so its size is held by the one who writes.
A host that is killed leaves the directory of its broker behind; the next broker on the same directory removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from ringfence.capability.limits import MIB, Limits
from ringfence.dataclass import dataclass, field
from ringfence.errors import CapabilityBlocked, InvalidRequest, QuotaExceeded
from ringfence.executors.beside import in_a_thread
from ringfence.operation.brokered import TmpAlloc, TmpFree, TmpOperation
from ringfence.outcome import BrokerOutcome, Budget, Effect
from ringfence.ports import ExecCtx
from ringfence.workspaces.beneath import open_beneath
from ringfence.workspaces.files import Area
from ringfence.workspaces.refusals import refusals

_PREFIX = "/workspace/tmp/"
_LIMITS = Limits()
_HOLDER = re.compile(r"holder-[0-9a-f]{32}\Z")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class TmpCaps:
    """What one broker gives out: to one request, and at any time in all."""

    max_bytes: int = 256 * MIB
    max_total_bytes: int = 1024 * MIB
    max_spaces: int = 64
    max_files: int = 10_000


@dataclass(slots=True)
class _Space:
    scope: str
    fd: int
    size_bytes: int
    max_files: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    freed: bool = False

    @contextmanager
    def using(self) -> Iterator[None]:
        """Keep the space for one operation; once it is freed, its descriptor may be anybody's."""
        with self.lock:
            if self.freed:
                raise InvalidRequest("this temporary space was freed", reason="invalid_handle")
            yield

    def area(self) -> Area:
        return Area(self.fd, max_bytes=self.size_bytes, max_files=self.max_files, changing=self.using, using=self.using)


class TmpExecutor:
    """Implements `ports.Executor` for temporary space: the broker is made, and asked, beside the event loop."""

    def __init__(self, broker: Callable[[], TmpBroker]) -> None:
        """`broker` may be slow the first time: it removes what killed ones left."""
        self._broker = broker

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "tmp"

    async def execute(self, ctx: ExecCtx, operation: TmpOperation) -> BrokerOutcome:
        """Carry out `operation` for the scope of the call, under the profile's limits; see `TmpBroker.perform`."""
        ctx.session()  # whose file broker is the only one that writes to a space
        profile = ctx.profile
        return await in_a_thread(
            profile.tenant, lambda: self._broker().perform(operation, scope=ctx.scope, limits=profile.limits)
        )


class TmpBroker:
    """Gives out spaces below one directory; a scope sees its own and no other."""

    def __init__(self, directory: Path, caps: TmpCaps | None = None) -> None:
        """Keep spaces below `directory`, made if missing, and remove what killed brokers left there."""
        self._caps = caps or TmpCaps()
        self._spaces: dict[str, _Space] = {}
        self._lock = threading.Lock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._base_fd = os.open(directory, _DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._base_fd, fcntl.LOCK_EX)  # or another broker sweeps ours between its making and its lock
            _sweep(self._base_fd)
            self._name = f"holder-{secrets.token_hex(16)}"
            self._fd = _make_held(self._base_fd, self._name)
            fcntl.flock(self._base_fd, fcntl.LOCK_UN)
        except BaseException:
            os.close(self._base_fd)
            raise

    def perform(self, operation: TmpOperation, *, scope: str, limits: Limits = _LIMITS) -> BrokerOutcome:
        """Give out or take back space for `scope`: of at most `limits.disk_bytes`, for at most `limits.max_files`.

        Raises:
            QuotaExceeded: No such space is left to give; none was taken.
            CapabilityBlocked: It is more than one request may take.
            InvalidRequest: The size is none, or the handle is not one of this call.
        """
        match operation:
            case TmpAlloc():
                with refusals("tmp"):
                    return self._alloc(operation.size_bytes, scope, limits)
            case TmpFree():
                with refusals("tmp"):
                    return self._free(operation.handle, scope)

    def areas(self, scope: str) -> dict[str, Area]:
        """Return the spaces of `scope` under the names the file broker knows them by."""
        with self._lock:
            return {f"tmp/{name}": space.area() for name, space in self._spaces.items() if space.scope == scope}

    def release(self, scope: str) -> int:
        """Take back every space of a call that is over; return how many there were."""
        with self._lock:
            names = [name for name, space in self._spaces.items() if space.scope == scope]
            for name in names:
                self._remove(name)
        return len(names)

    def close(self) -> None:
        """Take back everything and remove this broker's directory; safe to call twice."""
        with self._lock:
            if self._fd < 0:
                return
            for name in list(self._spaces):
                self._remove(name)
            _remove_tree(self._base_fd, self._name)
            os.close(self._fd)
            os.close(self._base_fd)
            self._fd = self._base_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _alloc(self, size: object, scope: str, limits: Limits) -> BrokerOutcome:
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            raise InvalidRequest("size_bytes must be a whole number above 0", reason="invalid_range")
        most = min(self._caps.max_bytes, limits.disk_bytes)
        if size > most:
            raise CapabilityBlocked(f"one space is at most {most} bytes", reason="too_large", limit=most)
        with self._lock:
            self._require_room(size)
            name = secrets.token_hex(16)
            os.mkdir(name, 0o700, dir_fd=self._fd)
            fd = open_beneath(self._fd, name, _DIRECTORY)
            self._spaces[name] = _Space(scope, fd, size, min(self._caps.max_files, limits.max_files))
        handle = _PREFIX + name
        effect = Effect("write", {"path": handle, "bytes": size})
        out = {"handle": handle, "path": handle, "size_bytes": size}
        return BrokerOutcome("tmp_alloc", out, None, Budget(disk_bytes=size), (effect,))

    def _require_room(self, size: int) -> None:
        taken = sum(space.size_bytes for space in self._spaces.values())
        disk = os.fstatvfs(self._fd)
        # Also what was promised and is not written yet: a promise the disk cannot keep is none.
        free = disk.f_bavail * disk.f_frsize - taken
        if len(self._spaces) >= self._caps.max_spaces or size > min(free, self._caps.max_total_bytes - taken):
            raise QuotaExceeded(
                f"no {size} bytes of temporary space are left", reason="tmp_space", limit=self._caps.max_total_bytes
            )

    def _free(self, handle: object, scope: str) -> BrokerOutcome:
        name = handle.removeprefix(_PREFIX) if isinstance(handle, str) else ""
        with self._lock:
            space = self._spaces.get(name)
            # Another call's space looks like none at all.
            if space is None or space.scope != scope:
                raise InvalidRequest("this call has no such temporary space", reason="invalid_handle")
            self._remove(name)
        handle = _PREFIX + name
        return BrokerOutcome("tmp_free", {"handle": handle}, effects=(Effect("write", {"path": handle}),))

    def _remove(self, name: str) -> None:
        space = self._spaces.pop(name)
        with space.lock:  # a write that is under way ends first
            space.freed = True
            os.close(space.fd)
            _remove_tree(self._fd, name)


def _make_held(base_fd: int, name: str) -> int:
    os.mkdir(name, 0o700, dir_fd=base_fd)
    fd = open_beneath(base_fd, name, _DIRECTORY)
    fcntl.flock(fd, fcntl.LOCK_EX)  # until this process ends, however it ends
    return fd


def _sweep(base_fd: int) -> None:
    """Remove the directories of brokers that are no more."""
    for name in os.listdir(base_fd):
        if not _HOLDER.match(name):
            continue
        with suppress(FileNotFoundError):  # its own broker closed it just now
            fd = open_beneath(base_fd, name, _DIRECTORY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_tree(base_fd, name)
            except BlockingIOError:
                continue
            finally:
                os.close(fd)


def _remove_tree(parent_fd: int, name: str) -> None:
    with suppress(FileNotFoundError):  # whoever removed it with its home has done the same
        shutil.rmtree(
            name, dir_fd=parent_fd
        )  # by descriptors: follows no link; no deeper than the file broker makes it
