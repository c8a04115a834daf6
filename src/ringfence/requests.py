"""What a program asks a manager for: one thing to run, and its output while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, field
from ringfence.outcome import ExecutionResult
from ringfence.streaming import Backlog

Content = bytes | str
_NOTHING: Mapping[str, Content] = MappingProxyType({})


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
    commit: str | None = None
    """What becomes of what it changes in its project: kept `always`, kept once somebody agrees (`ask`), or `never`."""
    cwd: str | None = None
    """The directory it starts in, `/workspace/…` or relative to the work directory."""
    secrets: Iterable[str] = ()
    """What it needs that nobody may see: `NAME=env`, `NAME=env:VARIABLE` or `NAME=file:name`."""
    allow_domains: Iterable[str] = ()
    """The hosts it may reach, `example.com` or `*.example.com`, each as far as the policy grants it."""


class OutputStream:
    """The output of one run while it runs; `result` is there once the iteration is over."""

    def __init__(self, execute: Callable[..., Coroutine[Any, Any, ExecutionResult]]) -> None:
        """Nothing runs before the iteration starts; `execute` takes `on_output`."""
        self._execute = execute
        self.result: ExecutionResult | None = None

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield `(stream name, bytes)` in order; leaving the loop early cancels the run.

        A reader who falls more than `streaming.MOST_UNREAD` bytes behind finds `[… N bytes left out …]` where the
        oldest of them were; the run does not wait for him.
        """
        unread = Backlog()
        arrived = asyncio.Event()

        def listen(name: str, data: bytes) -> None:
            unread.put(name, data)
            arrived.set()

        task = asyncio.ensure_future(self._execute(on_output=listen))
        task.add_done_callback(lambda _: arrived.set())
        try:
            while True:
                while (chunk := unread.take()) is not None:
                    yield chunk
                if task.done():
                    break
                arrived.clear()
                await arrived.wait()
            self.result = await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
