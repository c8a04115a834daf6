"""`AIOSandboxClient`: one AIO Sandbox service, for programs that talk to it directly.

What is asked here passes no policy, no budget and no journal. `SandboxManager(aio_pool=…)` runs code in the same
services under all three.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ringfence.capability.limits import Limits
from ringfence.dataclass import replace
from ringfence.errors import RingfenceError, Unavailable
from ringfence.isolation.aio.browser import Browser
from ringfence.isolation.aio.cells import Code, Jupyter
from ringfence.isolation.aio.commands import Bash, Shell
from ringfence.isolation.aio.door import Door
from ringfence.isolation.aio.files import Files
from ringfence.isolation.aio.following import follow
from ringfence.isolation.aio.program import WORKSPACE, Place, clearing, furnishing, place_in, program
from ringfence.operation import parse_language
from ringfence.outcome import ExecutionResult, Layers, OnOutput, SandboxType, Status
from ringfence.ports import Ending, Job
from ringfence.workspaces.place import check_names

LAYERS: Final = Layers(
    notes=("an AIO service: nobody here saw how it is isolated, and all that is known of a run is what it says",)
)
"""What is observed of a box at the other end of a wire: nothing."""
_LOOK_SECONDS: Final = 5.0


class Request(Protocol):
    """What `execute` reads of an `ExecutionRequest`."""

    @property
    def code(self) -> str | bytes: ...  # noqa: D102  as the fields of `ExecutionRequest`
    @property
    def language(self) -> str: ...  # noqa: D102
    @property
    def timeout(self) -> float | None: ...  # noqa: D102
    @property
    def args(self) -> Iterable[str]: ...  # noqa: D102
    @property
    def stdin(self) -> bytes | str: ...  # noqa: D102
    @property
    def files(self) -> Mapping[str, bytes | str]: ...  # noqa: D102
    @property
    def env(self) -> Mapping[str, str]: ...  # noqa: D102


class AIOSandboxClient:
    """One service: `bash`, `shell`, `file`, `code`, `jupyter` and `browser` are its parts; safe from any task."""

    def __init__(self, base_url: str, *, api_key: str | None = None, timeout: float = 60.0) -> None:
        """Nothing is connected yet; `timeout` is how long an answer may take where nothing else is said.

        Raises:
            InvalidRequest: The address or the key is none, or the key would travel in the clear.
        """
        self._door = Door(base_url, api_key=api_key, seconds=timeout)
        self.bash = Bash(self._door)
        self.shell = Shell(self._door)
        self.file = Files(self._door)
        self.code = Code(self._door)
        self.jupyter = Jupyter(self._door)
        self.browser = Browser(self._door)

    def __repr__(self) -> str:
        """Name the service; the key is nobody's business."""
        return f"AIOSandboxClient({self._door.shown!r})"

    @property
    def shown(self) -> str:
        """The service, as a message may name it."""
        return self._door.shown

    async def home(self) -> str:
        """Return the service's home directory; also the way to learn that it is there and well.

        Raises:
            RingfenceError: It is not.
        """
        return await asyncio.to_thread(self._door.look, self._door.seconds)

    def look(self, seconds: float = _LOOK_SECONDS) -> str:
        """Do the same from a thread that may wait."""
        return self._door.look(seconds)

    async def furnish(self) -> Place:
        """Make empty directories for one run, and return where they are.

        Raises:
            Unavailable: The service cannot make any.
        """
        place = place_in(await self.home(), secrets.token_hex(8))
        made = await self.bash.exec(furnishing(place), hard_seconds=self._door.seconds)
        if made.status != "completed" or made.exit_code not in (0, 1):
            raise Unavailable(f"{self.shown} cannot make directories in its home", fix="see its disk")
        return Place(WORKSPACE) if made.exit_code == 0 else place

    async def clear(self, place: Place) -> None:
        """Remove what `furnish` made."""
        await self.bash.exec(clearing(place), hard_seconds=self._door.seconds)

    async def execute(self, request: Request, *, on_output: OnOutput | None = None) -> ExecutionResult:
        """Run code of one of the languages there; with nobody's policy, and on nobody's record.

        Raises:
            RingfenceError: The service refused it, or was lost: then nobody knows how far it came.
        """
        language = parse_language(request.language)
        names = check_names(request.files)
        limits = Limits() if request.timeout is None else replace(Limits(), wall_seconds=request.timeout)
        code = request.code if isinstance(request.code, str) else request.code.decode("utf-8", "surrogateescape")
        job = Job(language, code, tuple(request.args), request.env, _bytes(request.stdin), limits)
        place = await self.furnish()
        try:
            planned = program(job, place)
            for name, content in zip(names, request.files.values(), strict=True):
                await self.file.write(f"{place.of('work')}/{name}", _bytes(content))
            for file, content in planned.files.items():
                await self.file.write(f"{place.of('job')}/{file}", content)
            followed = await follow(self.bash, planned, job, on_output)
        finally:
            with suppress(RingfenceError):
                await self.clear(place)
        if followed.lost is not None:
            raise followed.lost
        return _result(followed.ending)

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._door.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _bytes(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content


def _result(ending: Ending) -> ExecutionResult:
    match ending.killed_by:
        case None:
            failed = ending.exit_code != 0 or ending.signal is not None
            status = Status.FAILED if failed else Status.SUCCEEDED
        case "wall_timeout" | "cpu_timeout":
            status = Status.TIMED_OUT
        case _:
            status = Status.KILLED
    told: dict[str, Any] = {
        name: getattr(ending, name)
        for name in ("exit_code", "killed_by", "stdout_bytes", "stderr_bytes", "stdout_left_out", "stderr_left_out")
    }
    return ExecutionResult(
        status,
        stdout_raw=ending.stdout,
        stderr_raw=ending.stderr,
        stdout_truncated=ending.stdout_left_out > 0,
        stderr_truncated=ending.stderr_left_out > 0,
        reason=ending.killed_by,
        elapsed_ms=ending.elapsed_seconds * 1000,
        sandbox_type=SandboxType.AIO,
        backend="aio",
        isolation=LAYERS,
        **told,
    )
