"""What users hold: `run` for one line, `SandboxManager` for a program; both end in the same pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from ringfence import engines, wiring
from ringfence.authority.layers import Request
from ringfence.authority.limit_names import FIELDS
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.capability.limits import MIB, Limits
from ringfence.errors import InvalidRequest
from ringfence.identifiers import TimeOrdered
from ringfence.isolation.pool.decide import PoolPolicy
from ringfence.operation import CodeRun, parse_language
from ringfence.outcome import ExecutionResult, OnOutput
from ringfence.portal import portal

Content = bytes | str
_DEFAULTS = Limits()
_calls = TimeOrdered()
_NOTHING: Mapping[str, Content] = MappingProxyType({})
_Choice = TypeVar("_Choice", SecurityMode, Isolation)
# the usual types first: asking an abstract one is slow, and this is on the way of every run
_TEXTS = (str, bytes)
_LISTS = (tuple, list, Iterable)
_MAPPINGS = (dict, Mapping)
_BYTES = (bytes, bytearray, memoryview)
_LATER = ("docker_url", "confirmation_service", "aio_pool", "url", "api_key")


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """One thing to run, in the words of its caller."""

    code: str | bytes
    language: str = "python"
    timeout: float | None = None
    args: Iterable[str] = ()
    stdin: Content = b""
    files: Mapping[str, Content] = field(default_factory=lambda: _NOTHING)
    inputs: Mapping[str, Content] = field(default_factory=lambda: _NOTHING)
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    packages: Iterable[str] = ()
    preload: Iterable[str] = ()
    limits: Limits | None = None


def run(
    code: str | bytes,
    *,
    language: str = "python",
    timeout: float | None = None,
    args: Iterable[str] = (),
    stdin: Content = b"",
    files: Mapping[str, Content] | None = None,
    inputs: Mapping[str, Content] | None = None,
    env: Mapping[str, str] | None = None,
    packages: Iterable[str] = (),
    preload: Iterable[str] = (),
    memory_mb: int | None = None,
    limits: Limits | None = None,
    session_id: str | None = None,
    isolation: str = "auto",
    security_mode: str = "strict",
    pool_size: int | None = None,
    home: str | Path | None = None,
    policy_file: str | Path | None = None,
    role: str | None = None,
    on_output: OnOutput | None = None,
) -> ExecutionResult:
    """Run `code` in a box of its own and wait for it; works in any thread, also beside a running event loop.

    `on_output` is called from Ringfence's own thread.

    Raises:
        InvalidRequest: Something about the request is wrong; nothing ran.
        IsolationUnavailable: This machine cannot isolate it; nothing ran.
        Denied: The policy does not allow it; nothing ran.
    """
    request = ExecutionRequest(
        code,
        language,
        timeout,
        args,
        stdin,
        files or {},
        inputs or {},
        env or {},
        packages,
        preload,
        _with_memory(limits, memory_mb),
    )
    manager = SandboxManager(
        session_id,
        security_mode=security_mode,
        isolation=isolation,
        pool_size=pool_size,
        home=home,
        policy_file=policy_file,
        role=role,
    )
    manager.keep_engine()
    return portal().call(manager.execute(request, on_output=on_output))


class SandboxManager:
    """The one way in: every run of an agent's session goes through here."""

    def __init__(
        self,
        session_id: str | None = None,
        *,
        security_mode: SecurityMode | str = SecurityMode.STRICT,
        isolation: Isolation | str = Isolation.AUTO,
        pool_size: int | None = None,
        packages: Iterable[str] = (),
        preload: Iterable[str] = (),
        limits: Limits | None = None,
        require_cgroups: bool = False,
        home: str | Path | None = None,
        policy_file: str | Path | None = None,
        role: str | None = None,
        **later: Any,
    ) -> None:
        """Describe how to run; nothing starts before `async with` or the first run.

        `policy_file` is read again whenever it changes; `role` is one of its agent roles.

        Raises:
            InvalidRequest: An argument has no such value, or its part is not in this version.
        """
        for name in later:
            if name not in _LATER:
                raise TypeError(f"SandboxManager() got an unexpected keyword argument {name!r}")
            raise InvalidRequest(f"{name} is not available in this version", reason="not_in_this_version")
        if session_id is not None and not isinstance(session_id, str):
            raise InvalidRequest(f"session_id must be text, not {session_id!r}", reason="invalid_session_id")
        self._session_id = session_id
        self._packages = _strings("packages", packages)
        self._preload = _strings("preload", preload)
        self._limits = limits or _DEFAULTS
        self._security_mode = _choice(SecurityMode, security_mode, "security_mode")
        self._isolation = _choice(Isolation, isolation, "isolation")
        self._require_cgroups = require_cgroups
        self._settings = wiring.Settings(
            home=Path(home) if home is not None else wiring.default_home(),
            isolation=self._isolation,
            limits=self._limits,
            pool=_pool_policy(pool_size),
            preload=() if self._packages else self._preload,
            policy_file=Path(policy_file) if policy_file is not None else None,
        )
        if role is not None and not isinstance(role, str):
            raise InvalidRequest(f"role must be text, not {role!r}", reason="invalid_name")
        self._role = role
        self._usual_request: Request | None = None
        self._held: engines.Hold | None = None

    async def __aenter__(self) -> Self:
        """Start filling the pool."""
        self._engine()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it; see `cleanup`."""
        await self.cleanup()

    async def cleanup(self) -> None:
        """Destroy the parked workers; the last manager of an engine ends its processes."""
        held, self._held = self._held, None
        if held is not None:
            await asyncio.to_thread(held.release)

    async def execute_code(
        self,
        language: str = "python",
        code: str | bytes = "",
        timeout: float | None = None,  # noqa: ASYNC109  the run's own limit, kept by killing it, not by cancelling
        *,
        args: Iterable[str] = (),
        stdin: Content = b"",
        files: Mapping[str, Content] | None = None,
        inputs: Mapping[str, Content] | None = None,
        env: Mapping[str, str] | None = None,
        packages: Iterable[str] = (),
        preload: Iterable[str] = (),
        limits: Limits | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecutionResult:
        """Run code of one of the languages; `files` appear in its working directory."""
        request = ExecutionRequest(
            code, language, timeout, args, stdin, files or {}, inputs or {}, env or {}, packages, preload, limits
        )
        return await self.execute(request, on_output=on_output)

    async def execute_shell(
        self,
        command: str,
        files: Mapping[str, Content] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as in `execute_code`
        **options: Any,
    ) -> ExecutionResult:
        """Run a bash command line inside the box; options as in `execute_code`."""
        return await self.execute_code("bash", command, timeout, files=files, **options)

    async def execute(self, request: ExecutionRequest, *, on_output: OnOutput | None = None) -> ExecutionResult:
        """Run `request`; cancelling the task kills the run and everything it started.

        Raises:
            InvalidRequest: Something about the request is wrong; nothing ran.
            IsolationUnavailable: This machine cannot isolate it; nothing ran.
        """
        operation = self._operation(request)
        engine = self._engine()
        profile = engine.authority.profile(
            operation, call_id=_calls.new("call"), role=self._role, request=self._requested(request)
        )
        return await engine.orchestrator.run(operation, profile, on_output)

    def stream(self, request: ExecutionRequest) -> OutputStream:
        """Run `request` and iterate over its output as it comes: `async for name, chunk in manager.stream(…)`."""
        return OutputStream(self, request)

    def pool_status(self) -> dict[str, int]:
        """Count the workers of the pool by what they are doing."""
        return self._engine().keeper.status()

    def pool_pids(self) -> list[tuple[int, int]]:
        """Return, for each parked worker, the host's pids of its init and of itself."""
        return [(worker.init_pid, worker.worker_pid) for worker in self._engine().keeper.parked()]

    def keep_engine(self) -> None:
        """Leave the engine running until the process ends, for whoever makes a manager for every run."""
        self._held = engines.keep(self._settings)

    def _engine(self) -> wiring.Engine:
        if self._held is None or self._held.inherited:
            self._held = engines.hold(self._settings)
        return self._held.engine

    def _operation(self, request: ExecutionRequest) -> CodeRun:
        return CodeRun(
            language=parse_language(request.language),
            code=_text(request.code),
            args=_strings("args", request.args),
            stdin=_bytes("stdin", request.stdin),
            files=_contents("files", request.files),
            inputs=_contents("inputs", request.inputs),
            env=_environment(request.env),
            packages=_strings("packages", request.packages) or self._packages,
            preload=_strings("preload", request.preload) or self._preload,
            session_id=self._session_id,
        )

    def _requested(self, request: ExecutionRequest) -> Request:
        """Return what the caller asks for of its own accord: only what differs from the system's defaults."""
        if request.limits is None and request.timeout is None:
            if self._usual_request is None:
                self._usual_request = self._request_for(self._limits)
            return self._usual_request
        limits = request.limits or self._limits
        if request.timeout is not None:
            if isinstance(request.timeout, bool) or not isinstance(request.timeout, int | float):
                raise InvalidRequest(
                    f"timeout must be a number of seconds, not {request.timeout!r}", reason="invalid_limit"
                )
            limits = replace(limits, wall_seconds=float(request.timeout))
        return self._request_for(limits)

    def _request_for(self, limits: Limits) -> Request:
        asked = {name: value for name in FIELDS if (value := getattr(limits, name)) != getattr(_DEFAULTS, name)}
        return Request(
            limits=asked,
            isolation=self._isolation,
            security_mode=self._security_mode,
            require_cgroups=self._require_cgroups,
        )


class OutputStream:
    """The output of one run while it runs; `result` is there once the iteration is over."""

    def __init__(self, manager: SandboxManager, request: ExecutionRequest) -> None:
        """Nothing runs before the iteration starts."""
        self._manager = manager
        self._request = request
        self.result: ExecutionResult | None = None

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield `(stream name, bytes)` in order; leaving the loop early cancels the run."""
        chunks: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue()
        task = asyncio.ensure_future(
            self._manager.execute(self._request, on_output=lambda name, data: chunks.put_nowait((name, data)))
        )
        task.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            self.result = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


def _choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(kind)
        raise InvalidRequest(f"{name} must be one of {known}, not {value!r}", reason=f"unknown_{name}") from None


def _pool_policy(pool_size: int | None) -> PoolPolicy:
    if pool_size is None:
        return PoolPolicy()
    if not _is_whole(pool_size) or pool_size < 0:
        raise InvalidRequest(f"pool_size must be a whole number from 0, not {pool_size!r}", reason="invalid_pool_size")
    return replace(PoolPolicy(), min_idle=min(PoolPolicy().min_idle, pool_size), max_idle=pool_size)


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _with_memory(limits: Limits | None, memory_mb: int | None) -> Limits | None:
    if memory_mb is None:
        return limits
    if not _is_whole(memory_mb):
        raise InvalidRequest(f"memory_mb must be a whole number, not {memory_mb!r}", reason="invalid_limit")
    return replace(limits or Limits(), memory_bytes=memory_mb * MIB)


def _text(code: object) -> str:
    if isinstance(code, bytes):
        try:
            return code.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"code is not UTF-8: {error}", reason="invalid_text") from None
    if not isinstance(code, str):
        raise InvalidRequest(f"code must be text, not {type(code).__name__}", reason="invalid_text")
    return code


def _strings(name: str, values: object) -> tuple[str, ...]:
    # a text is an iterable of texts too, and never what was meant
    if isinstance(values, _TEXTS) or not isinstance(values, _LISTS):
        raise InvalidRequest(f"{name} must be a list of texts, not {values!r}", reason=f"invalid_{name}")
    strings = tuple(values)
    for value in strings:
        if not isinstance(value, str):
            raise InvalidRequest(f"{name} must be a list of texts; {value!r} is none", reason=f"invalid_{name}")
    return strings


def _contents(name: str, files: object) -> dict[str, bytes]:
    if not isinstance(files, _MAPPINGS):
        raise InvalidRequest(f"{name} must map names to contents, not {files!r}", reason="invalid_content")
    return {_name(name, path): _bytes(path, content) for path, content in files.items()}


def _environment(env: object) -> dict[str, str]:
    if not isinstance(env, _MAPPINGS):
        raise InvalidRequest(f"env must map names to texts, not {env!r}", reason="invalid_env")
    for variable, value in env.items():
        _name("env", variable)
        if not isinstance(value, str):
            raise InvalidRequest(f"env {variable} must be text, not {value!r}", reason="invalid_env")
    return dict(env)


def _name(where: str, name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"{where}: {name!r} is not a name", reason="invalid_name")
    return name


def _bytes(name: str, content: object) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, _BYTES):
        return bytes(content)
    raise InvalidRequest(f"{name} must be bytes or text, not {type(content).__name__}", reason="invalid_content")
