"""Playwright in a thread of its own, for whatever event loops its callers have, and with nothing of the caller's in it.

Its driver is a Node program that Playwright starts with the environment of the application, which is where secrets are.
The loop it is started in is ours, and gives whatever is started in it an environment of ours instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ringfence.browser.chromium import FIX
from ringfence.errors import Unavailable
from ringfence.isolation.linux import cgroup_owner

if TYPE_CHECKING:
    from playwright.async_api import Playwright

T = TypeVar("T")
_PREFIX: Final = "ringfence-browser-"
_KEPT: Final = ("PW_LANG_NAME", "PW_LANG_NAME_VERSION", "PW_CLI_DISPLAY_VERSION")
_OURS: Final = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1",
}
_STOP_SECONDS: Final = 10.0


async def beside(work: Callable[[], T]) -> T:
    """Do what blocks in a thread; while the interpreter ends, which gives out no more threads, do it here."""
    try:
        done = asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:
        return work()
    return await done


class _Loop(asyncio.SelectorEventLoop):
    """Starts programs with an environment of ours, whatever was asked for."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self._directory = directory
        self._program: int | None = None

    async def subprocess_exec(self, *arguments: Any, **options: Any) -> Any:
        asked = options.get("env") or {}
        kept = {name: asked[name] for name in _KEPT if name in asked}
        options |= {"env": _OURS | kept | {"TMPDIR": self._directory}, "cwd": "/", "stderr": subprocess.DEVNULL}
        started = await super().subprocess_exec(*arguments, **options)
        self._program = started[0].get_pid()
        return started

    def has_lost_its_program(self) -> bool:
        """Whether what was started last is dead, as the kernel says."""
        state = None if self._program is None else cgroup_owner.process_state(self._program)
        return self._program is not None and (state is None or state[0] in "ZX")


class Driver:
    """Runs coroutines beside Playwright; nothing starts before the first."""

    def __init__(self) -> None:
        """Nothing is imported yet: the extra may be missing."""
        self._lock = threading.Lock()
        self._running: _Running | None = None

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have `work` done in the driver's loop; cancelling the caller cancels it there.

        Raises:
            Unavailable: The extra is missing (`browser_backend_missing`).
        """
        try:
            loop = self._started().loop
        except BaseException:
            work.close()
            raise
        task: list[asyncio.Task[T]] = []
        ended: Future[T] = Future()

        def start() -> None:
            task.append(loop.create_task(work))
            task[0].add_done_callback(lambda done: _copy(done, ended))

        loop.call_soon_threadsafe(start)
        waiting = asyncio.wrap_future(ended)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            # to its end: what still runs there must not meet what its caller does next
            while not waiting.done():
                loop.call_soon_threadsafe(lambda: task[0].cancel())
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({waiting})
            if not waiting.cancelled():
                waiting.exception()  # is nobody's any more
            raise

    async def playwright(self) -> Playwright:
        """Return Playwright; only to be called in the driver's loop."""
        return await self._started().playwright()

    def has_died(self) -> bool:
        """Whether Playwright's Node program is gone; whoever asks for Playwright next gets a new one."""
        return self._started().loop.has_lost_its_program()

    def close(self) -> None:
        """Stop Playwright, its Node program and the thread; blocks for a moment."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _started(self) -> _Running:
        with self._lock:
            if self._running is None or not self._running.is_ours():
                self._running = _Running()
            return self._running


class _Running:
    def __init__(self) -> None:
        try:
            import playwright.async_api  # noqa: F401  asked for before anything starts
        except ImportError as error:
            raise Unavailable("playwright is not installed", reason="browser_backend_missing", fix=FIX) from error
        self._pid = os.getpid()
        self._directory = _directory()
        self.loop = _Loop(self._directory)
        self._playwright: asyncio.Future[Playwright] | None = None
        self._thread = threading.Thread(target=self._run, name="ringfence-browser", daemon=True)
        self._thread.start()

    def is_ours(self) -> bool:
        """Whether it runs in this process: a forked child has none."""
        return self._pid == os.getpid() and self._thread.is_alive()

    async def playwright(self) -> Playwright:
        if self._playwright is None or _failed(self._playwright) or self.loop.has_lost_its_program():
            self._playwright = asyncio.ensure_future(_start())
        return await asyncio.shield(self._playwright)

    def stop(self) -> None:
        if self.is_ours():
            with contextlib.suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result(_STOP_SECONDS)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _stop(self) -> None:
        if self._playwright is not None and not self.loop.has_lost_its_program():
            await (await self._playwright).stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.loop.close()


def _copy(done: asyncio.Task[T], ended: Future[T]) -> None:
    if done.cancelled():
        ended.cancel()
    elif (error := done.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(done.result())


async def _start() -> Playwright:
    from playwright.async_api import async_playwright

    return await async_playwright().start()


def _failed(done: asyncio.Future[Playwright]) -> bool:
    return done.done() and (done.cancelled() or done.exception() is not None)


def _directory() -> str:
    """Return a new directory for what the Node program writes, and remove those of engines that are dead."""
    top = tempfile.gettempdir()
    namespace = cgroup_owner.pid_namespace()
    with os.scandir(top) as entries:
        for entry in entries:
            owner = cgroup_owner.parse_owner(entry.name.replace(_PREFIX, "ringfence-", 1))
            if owner is None or not entry.name.startswith(_PREFIX):
                continue
            if cgroup_owner.is_dead(owner, cgroup_owner.process_state(owner.pid), namespace) and _is_ours(entry):
                shutil.rmtree(entry.path, ignore_errors=True)
    name = cgroup_owner.directory_name(cgroup_owner.current_owner()).replace("ringfence-", _PREFIX, 1)
    path = f"{top}/{name}"
    os.mkdir(path, 0o700)
    return path


def _is_ours(entry: os.DirEntry[str]) -> bool:
    seen = entry.stat(follow_symlinks=False)
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()
