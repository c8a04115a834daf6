"""Our own functions in a page, where its scripts cannot see or change them; whatever differs goes in as data.

Each is called in an isolated world: it sees the document, and built-in objects that no script has touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ringfence.browser.picture import Clip
from ringfence.browser.tree import DEEPEST
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from playwright.async_api import CDPSession

# Each takes one argument, and answers {"value": …} or {"wrong": "selector" | "nothing"}.
_ONE: Final = """
  const one = (selector) => {
    if (selector === null) return document.body || document.documentElement;
    let found;
    try { found = document.querySelector(selector); } catch { throw 'selector'; }
    if (!found) throw 'nothing';
    return found;
  };
  const many = (selector) => {
    try { return document.querySelectorAll(selector); } catch { throw 'selector'; }
  };
"""


def _function(body: str) -> str:
    return f"""function (asked) {{ 'use strict'; {_ONE}
  try {{ return {{value: (() => {{ {body} }})()}}; }}
  catch (wrong) {{ if (typeof wrong === 'string') return {{wrong}}; throw wrong; }}
}}"""


TEXT: Final = _function("""
  const text = one(asked.selector).innerText || '';
  return {text: text.slice(0, asked.characters), truncated: text.length > asked.characters};
""")
LINKS: Final = _function("""
  const links = [];
  let truncated = false;
  const root = asked.selector === null ? document : one(asked.selector);
  for (const link of root.querySelectorAll('a[href], area[href]')) {
    if (!/^https?:$/.test(link.protocol)) continue;
    if (links.length >= asked.links) { truncated = true; break; }
    links.push({url: link.href.slice(0, 8192), text: (link.innerText || '').trim().slice(0, 500)});
  }
  return {links, truncated};
""")
FIELDS: Final = _function("""
  const fields = {};
  let nodes = asked.nodes, characters = asked.characters, truncated = false;
  for (const [name, selector] of asked.fields) {
    const texts = [];
    for (const found of many(selector)) {
      if (nodes-- <= 0 || characters <= 0) { truncated = true; break; }
      const text = (found.innerText ?? found.textContent ?? '').trim();
      truncated ||= text.length > characters;
      texts.push(text.slice(0, characters));
      characters -= text.length;
    }
    fields[name] = texts;
  }
  return {fields, truncated};
""")
COUNT: Final = _function("return document.getElementsByTagName('*').length;")
TITLE: Final = _function("return (document.title || '').slice(0, 1000);")
RECTANGLE: Final = _function("""
  const found = one(asked.selector);
  if (asked.scroll) found.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
  const box = found.getBoundingClientRect();
  const left = asked.scroll ? 0 : window.scrollX, top = asked.scroll ? 0 : window.scrollY;
  return {x: box.x + left, y: box.y + top, width: box.width, height: box.height};
""")
FOCUS: Final = _function("""
  const found = one(asked.selector);
  if (!found.isContentEditable && !/^(INPUT|TEXTAREA)$/.test(found.tagName)) throw 'nothing';
  if (found.type === 'file') throw 'nothing';
  found.focus({preventScroll: false});
  if (found.select) found.select(); else document.getSelection().selectAllChildren(found);
  return document.activeElement === found;
""")


class World:
    """The isolated world of the document that the page shows now."""

    def __init__(self, session: CDPSession) -> None:
        """`session` is the page's own."""
        self._session = session

    async def call(self, function: str, **asked: Any) -> Any:
        """Return what one of the functions above answers.

        Raises:
            InvalidRequest: The selector is none, or finds nothing.
        """
        tree = await self._session.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        made = await self._session.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "ringfence"})
        answer = await self._session.send(
            "Runtime.callFunctionOn",
            {
                "functionDeclaration": function,
                "executionContextId": made["executionContextId"],
                "arguments": [{"value": asked}],
                "returnByValue": True,
                "silent": True,
            },
        )
        said = answer.get("result", {}).get("value")
        if not isinstance(said, dict) or "exceptionDetails" in answer:
            raise InvalidRequest("the page has nothing that could be read this way", reason="invalid_selector")
        if "wrong" in said:
            what = "is no CSS selector" if said["wrong"] == "selector" else "finds nothing in the page"
            raise InvalidRequest(f"the selector {what}", reason="invalid_selector")
        return said["value"]

    async def accessibility(self) -> list[dict[str, Any]]:
        """Return the nodes of the accessibility tree, to a depth that pages have."""
        answer = await self._session.send("Accessibility.getFullAXTree", {"depth": DEEPEST})
        nodes: list[dict[str, Any]] = answer["nodes"]
        return nodes

    async def size(self) -> dict[str, Any]:
        """Return the rectangle of the whole page."""
        metrics = await self._session.send("Page.getLayoutMetrics")
        return {
            "x": 0,
            "y": 0,
            "width": metrics["cssContentSize"]["width"],
            "height": metrics["cssContentSize"]["height"],
        }

    async def window(self) -> dict[str, Any]:
        """Return the rectangle that the window shows."""
        view = (await self._session.send("Page.getLayoutMetrics"))["cssLayoutViewport"]
        return {"x": view["pageX"], "y": view["pageY"], "width": view["clientWidth"], "height": view["clientHeight"]}

    async def picture(self, wanted: Clip) -> str:
        """Return the PNG of a part of the page, in base64; no more than that part, however the page changes."""
        asked = {"format": "png", "clip": wanted.to_message(), "captureBeyondViewport": True}
        answer = await self._session.send("Page.captureScreenshot", asked)
        return str(answer["data"])

    async def insert(self, text: str) -> None:
        """Give the field that has the focus this text, as a keyboard would."""
        await self._session.send("Input.insertText", {"text": text})
