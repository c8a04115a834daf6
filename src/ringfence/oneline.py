"""One call in one line: `run`, `perform` and `fetch_url`, for whoever needs neither a manager nor an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ringfence import arguments
from ringfence.capability.limits import Limits
from ringfence.evidence.correlation import UNKNOWN, Correlation
from ringfence.facade import SandboxManager
from ringfence.outcome import BrokerOutcome, ExecutionResult, OnOutput, Outcome
from ringfence.portal import portal
from ringfence.requests import Content, ExecutionRequest

if TYPE_CHECKING:
    from ringfence.operation.brokered import Brokered

_T = TypeVar("_T")


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
    commit: str | None = None,
    cwd: str | None = None,
    secrets: Iterable[str] = (),
    allow_domains: Iterable[str] = (),
    session_id: str | None = None,
    isolation: str = "auto",
    security_mode: str = "strict",
    pool_size: int | None = None,
    home: str | Path | None = None,
    policy_file: str | Path | None = None,
    role: str | None = None,
    correlation: Correlation = UNKNOWN,
    url: str | None = None,
    api_key: str | None = None,
    on_output: OnOutput | None = None,
) -> ExecutionResult:
    """Run `code` in a box of its own and wait for it; works in any thread, also beside a running event loop.

    `on_output` is called from Ringfence's own thread. With `url` it runs in the service there.

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
        arguments.with_memory(limits, memory_mb),
        commit,
        cwd,
        secrets,
        allow_domains,
    )
    manager = SandboxManager(
        session_id,
        security_mode=security_mode,
        isolation=isolation,
        pool_size=pool_size,
        home=home,
        policy_file=policy_file,
        role=role,
        correlation=correlation,
        url=url,
        api_key=api_key,
    )
    return _call(manager, lambda: manager.execute(request, on_output=on_output), url)


def perform(
    operation: Brokered,
    *,
    session_id: str | None = None,
    limits: Limits | None = None,
    home: str | Path | None = None,
    policy_file: str | Path | None = None,
    role: str | None = None,
    correlation: Correlation = UNKNOWN,
    url: str | None = None,
    api_key: str | None = None,
) -> Outcome:
    """Carry out one operation as `SandboxManager.perform` does, and wait for it.

    Temporary space is the session's in this process, and stays until it is freed or the process ends.
    """
    # only a program needs a box, and nobody else should have to keep one ready
    pool_size = None if url is not None or getattr(operation, "kind", "") == "proc_exec" else 0
    manager = SandboxManager(
        session_id,
        limits=limits,
        home=home,
        policy_file=policy_file,
        role=role,
        pool_size=pool_size,
        correlation=correlation,
        url=url,
        api_key=api_key,
    )
    return _call(manager, lambda: manager.perform(operation), url)


def fetch_url(
    url: str,
    *,
    session_id: str | None = None,
    save_as: str | None = None,
    limits: Limits | None = None,
    home: str | Path | None = None,
    policy_file: str | Path | None = None,
    role: str | None = None,
) -> BrokerOutcome:
    """Fetch what is at `url` as `SandboxManager.fetch_url` does, and wait for it; a policy has to let it out."""
    manager = SandboxManager(session_id, limits=limits, home=home, policy_file=policy_file, role=role, pool_size=0)
    return _call(manager, lambda: manager.fetch_url(url, save_as=save_as), None)


def _call(manager: SandboxManager, begin: Callable[[], Coroutine[Any, Any, _T]], url: str | None) -> _T:
    """Wait for it; an engine stays for the next call, connections to a service do not."""
    through = portal()
    if url is None:
        manager.keep_engine()
        return through.call(begin())

    async def once() -> _T:
        async with manager:
            return await begin()

    return through.call(once())
