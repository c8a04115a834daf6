"""The browser of an AIO service: it has one, with a display; what its pages say is as foreign as any page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.isolation.aio.answers import Form, member, no_answer, read_data
from ringfence.isolation.aio.door import Door

ACTIONS: Final = frozenset(
    {
        "MOVE_TO", "MOVE_REL", "CLICK", "MOUSE_DOWN", "MOUSE_UP", "RIGHT_CLICK", "DOUBLE_CLICK", "DRAG_TO", "DRAG_REL",
        "SCROLL", "TYPING", "PRESS", "KEY_DOWN", "KEY_UP", "HOTKEY", "WAIT",
    }
)  # fmt: skip
_MOST_PICTURE: Final = 64 << 20
_PICTURES: Final = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")


@dataclass(frozen=True, slots=True)
class BrowserInfo:
    """Where the browser can be driven and watched."""

    user_agent: str
    cdp_url: str
    vnc_url: str
    width: int
    height: int


class Browser:
    """`/v1/browser`."""

    def __init__(self, door: Door) -> None:
        """Speak through `door`."""
        self._door = door

    async def info(self) -> BrowserInfo:
        """Return what the service says of its browser."""
        data = read_data(await self._door.get("browser/info"))
        viewport = member(data, "viewport", dict)
        return BrowserInfo(
            member(data, "user_agent", str),
            member(data, "cdp_url", str),
            member(data, "vnc_url", str),
            member(viewport, "width", int),
            member(viewport, "height", int),
        )

    async def screenshot(self) -> bytes:
        """Return a picture of the display."""
        picture = await self._door.content("browser/screenshot", longest=_MOST_PICTURE)
        if not picture.startswith(_PICTURES):
            raise no_answer("picture")
        return picture

    async def act(self, action: str, **arguments: Any) -> Form:
        """Move, click or type, as a person at the display would.

        Raises:
            InvalidRequest: There is no such action.
        """
        if action not in ACTIONS:
            raise InvalidRequest(f"there is no browser action {action[:100]!a}", reason="unknown_operation")
        return await self._door.post("browser/actions", {"action_type": action, **arguments})

    async def navigate(self, url: str) -> Form:
        """Open a page."""
        return await self.page("navigate", {"url": url})

    async def page(self, operation: str, arguments: Mapping[str, Any]) -> Form:
        """Do something with the page that is open: `click`, `fill`, `type`, `evaluate`, `wait` and their like.

        Raises:
            InvalidRequest: It is not the name of an operation.
        """
        if not operation.replace("_", "").isalpha() or not operation.isascii():
            raise InvalidRequest(f"there is no page operation {operation[:100]!a}", reason="unknown_operation")
        return await self._door.post(f"browser/page/{operation}", arguments)

    async def text(self) -> str:
        """Return the text of the page that is open."""
        return member(await self._door.get("browser/page/text"), "data", str)
