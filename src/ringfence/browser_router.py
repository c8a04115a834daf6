"""The browser of one session as an agent's program holds it: it says what for, and gets the browser that fits.

Whichever that is, it is the one the policy, the guard and the egress proxy stand around: routing chooses what may be
saved, never what may be reached.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.facade import SandboxManager
from ringfence.operation.brokered import AIO_BROWSER, EXTERNAL_BROWSER

if TYPE_CHECKING:
    from ringfence.outcome import BrokerOutcome

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_FOR: Final = ("needs_file_access", "is_research")
"""What a context may say, each of which asks for the browser that has a workspace for what it saves."""
# what each action is called, by the method that carries it out and the parameters it knows
_ACTIONS: Final = {
    **dict.fromkeys(("navigate", "open", "goto"), ("browse_page", frozenset({"url"}))),
    "extract": ("extract_page", frozenset({"what", "selector", "fields"})),
    "screenshot": ("screenshot_page", frozenset({"selector", "full_page", "width", "height", "save_as"})),
    "click": ("click_page", frozenset({"selector"})),
    "type": ("type_page", frozenset({"selector", "text"})),
    "close": ("close_page", frozenset[str]()),
}


@dataclass(frozen=True, slots=True)
class BrowserAction:
    """What is to be done: `navigate`, `extract`, `screenshot`, `click`, `type` or `close`, and with what."""

    action: str
    params: Mapping[str, Any] = field(default_factory=lambda: NOTHING)


class BrowserRouter:
    """The single entry to a session's browser, of which there is one at a time: another kind closes the former."""

    def __init__(self, session_id: str, manager: SandboxManager | None = None, **options: Any) -> None:
        """Browse as `session_id` through `manager`, under its policy, role and grant.

        Without one it has a manager of its own, made of `options`; its policy is `$RINGFENCE_POLICY` where neither
        says another, and without any nothing is reached.
        """
        if manager is not None and options:
            raise InvalidRequest("a manager has its options already", reason="invalid_value")
        self._owns = manager is None
        if manager is None:
            options = {"pool_size": 0, "policy_file": os.environ.get("RINGFENCE_POLICY") or None, **options}
            manager = SandboxManager(session_id, **options)
        else:
            manager = manager.acting_for(session_id=session_id)
        self._manager = manager
        self._turn = asyncio.Lock()
        self.backend: str | None = None
        """Which browser has the session's page now."""

    async def execute(self, action: BrowserAction, context: Mapping[str, Any] = NOTHING) -> BrokerOutcome:
        """Carry out `action`; `out["backend"]` says in which browser.

        A context with `needs_file_access` or `is_research` asks for the one that may save what it finds
        (`aio_browser`), any other for the light one (`external_browser`). Actions on an open page stay where it is,
        unless the context asks for the other: then there is no page yet.

        Raises:
            InvalidRequest: There is no such action or parameter, or no page to act on.
            Denied: The policy does not allow it; nothing was done.
        """
        method, params = _checked(action)
        wanted = backend_for(context)
        async with self._turn:
            if method == "browse_page":
                return await self._navigate(params["url"], wanted)
            if params.get("save_as") is not None and (self.backend or wanted) != AIO_BROWSER:
                raise InvalidRequest(
                    "the light browser saves nothing",
                    reason="invalid_value",
                    fix="say needs_file_access in the context",
                )
            if method == "close_page":
                self.backend = None
            elif any(context.get(name) for name in _FOR) and self.backend not in (None, wanted):
                await self._manager.close_page()
                self.backend = None
            outcome: BrokerOutcome = await getattr(self._manager, method)(**params)
            return outcome

    async def close(self) -> None:
        """End the session's page, and the manager where the router made it."""
        async with self._turn:
            try:
                if self.backend is not None:
                    self.backend = None
                    await self._manager.close_page()
            finally:
                if self._owns:
                    await self._manager.cleanup()

    async def __aenter__(self) -> Self:
        """Return the router; nothing starts before the first action."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it; see `close`."""
        await self.close()

    async def _navigate(self, url: str, wanted: str) -> BrokerOutcome:
        outcome = await self._manager.browse_page(url, backend=wanted)
        self.backend = str(outcome.out["backend"])
        return outcome


def backend_for(context: Mapping[str, Any]) -> str:
    """Return which browser a context asks for.

    Raises:
        InvalidRequest: It is no mapping of names.
    """
    if not isinstance(context, Mapping):
        raise InvalidRequest("context must map names to values", reason="invalid_value")
    return AIO_BROWSER if any(context.get(name) for name in _FOR) else EXTERNAL_BROWSER


def _checked(action: BrowserAction) -> tuple[str, dict[str, Any]]:
    known = _ACTIONS.get(str(action.action))
    if known is None:
        names = ", ".join(sorted(_ACTIONS))
        raise InvalidRequest(
            f"there is no browser action {str(action.action)[:100]!r}: {names}", reason="unknown_operation"
        )
    method, parameters = known
    if not isinstance(action.params, Mapping):
        raise InvalidRequest("params must map names to values", reason="invalid_operation", field="params")
    if unknown := action.params.keys() - parameters:
        name = min(map(str, unknown))[:100]
        raise InvalidRequest(f"{name} is not a parameter of {action.action}", reason="invalid_operation", field=name)
    needed = {"browse_page": ("url",), "click_page": ("selector",), "type_page": ("selector", "text")}.get(method, ())
    for name in needed:
        if name not in action.params:
            raise InvalidRequest(f"{name} is missing from {action.action}", reason="invalid_operation", field=name)
    return method, dict(action.params)
