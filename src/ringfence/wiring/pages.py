"""Puts together what shows web pages: browsers behind the engine's one proxy, and where their pictures are kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringfence.browser.port import Browsers
    from ringfence.executors.browser import BrowserExecutor, KeepPicture
    from ringfence.executors.ways_out import WaysOut
    from ringfence.outcome import Artifact
    from ringfence.ports import ExecCtx
    from ringfence.wiring.settings import Settings


def make_browsers(ways_out: WaysOut) -> Browsers:
    """Return the browsers of an engine; none starts before the first page."""
    from ringfence.browser.browsers import ChromiumBrowsers

    return ChromiumBrowsers(ways_out.proxy)


def make_browser_executor(settings: Settings, browsers: Callable[[], Browsers]) -> BrowserExecutor:
    """Return what carries out the operations of the browser."""
    from ringfence.clock import SystemClock
    from ringfence.executors.browser import BrowserExecutor

    return BrowserExecutor(browsers, SystemClock(), keeping_in(settings.files_home), settings.net.nat64)


def keeping_in(home: Path) -> KeepPicture:
    """Return what keeps a picture where the artifacts of a run are kept: in the session's workspace, by its quota."""

    async def keep(ctx: ExecCtx, picture: Artifact) -> str:
        from ringfence.executors.beside import in_a_thread
        from ringfence.outcome import ExecutionResult, Status
        from ringfence.workspaces.exec_files import write_exec_files
        from ringfence.workspaces.session import SessionWorkspace

        session, tenant = ctx.session(), ctx.profile.tenant
        result = ExecutionResult(Status.SUCCEEDED, artifacts=(picture,), exec_id=ctx.exec_id)
        about = {"exec_id": ctx.exec_id, "op": "browser_screenshot"}

        def write() -> None:
            SessionWorkspace.create(home, session, tenant=tenant).close()
            write_exec_files(
                home, session, ctx.exec_id, result, manifest=about, meta=about, tenant=tenant, durable=False
            )

        await in_a_thread(tenant, write)
        return f"/workspace/artifacts/{ctx.exec_id}/{picture.path}"

    return keep


def end_browsers(browsers: Browsers) -> None:
    """Close every page and every box, and wait; whoever ends an engine may be inside an event loop, or beside it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(browsers.close())
        return
    ending = threading.Thread(target=lambda: asyncio.run(browsers.close()), name="ringfence-browser-end")
    ending.start()
    ending.join()
