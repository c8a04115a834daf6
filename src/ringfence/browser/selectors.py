"""What finds things in a page: plain CSS, given to the page as data; nothing that a driver would read as a language."""

from __future__ import annotations

import re
from typing import Final

from ringfence.errors import InvalidRequest

MOST_CHARACTERS: Final = 1000
# `xpath=`, `text=`, `internal:control=`, `_react=`, `a >> b`, `//a`, `..`: what Playwright's engines are asked in.
_ENGINE: Final = re.compile(r"\s*(?:[A-Za-z_-][\w:+-]*=|internal:|//|\.\.|\(\s*/)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def plain_css(selector: str) -> str:
    """Return `selector` if it can be a CSS selector; whether it is one, the page's parser says.

    Raises:
        InvalidRequest: It is empty, too long, or speaks to a driver instead of a page.
    """
    if not selector.strip() or len(selector) > MOST_CHARACTERS:
        raise InvalidRequest(f"a selector has 1 to {MOST_CHARACTERS} characters", reason="invalid_selector")
    if _ENGINE.match(selector) or ">>" in selector or "internal:" in selector or _CONTROL.search(selector):
        raise InvalidRequest(
            f"{selector[:100]!a} is no CSS selector", reason="invalid_selector", fix="write it as in a style sheet"
        )
    return selector
