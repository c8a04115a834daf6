"""The browser: which of its verbs may be used; which pages is a matter of `NetHttp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ringfence.capability.kind import Kind, invalid
from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from ringfence.operation.form import Operation

READING = frozenset({"extract", "open", "screenshot"})
"""What is meant where nobody names verbs; the others act on a page, and somebody has to name them."""
VERBS = READING | {"click", "type"}
_VERB_OF = {
    "browser_nav": "open",
    "browser_close": "open",
    "browser_extract": "extract",
    "browser_screenshot": "screenshot",
    "browser_click": "click",
    "browser_type": "type",
}


@dataclass(frozen=True, slots=True)
class BrowserUse(Kind):
    """Use these verbs of the browser; `open` takes a `NetHttp` for the page as well."""

    scope: frozenset[str]

    tag: ClassVar[str] = "BrowserUse"
    name: ClassVar[str] = "browser.use"

    def __post_init__(self) -> None:
        unknown = set(self.scope) - VERBS
        if unknown:
            raise invalid(self.tag, f"{min(map(str, unknown))!r} is not one of {', '.join(sorted(VERBS))}")
        object.__setattr__(self, "scope", frozenset(self.scope))

    def meet(self, other: Kind) -> BrowserUse | None:
        """Return the common verbs."""
        if not isinstance(other, BrowserUse):
            return None
        return BrowserUse(self.scope & other.scope).normal()

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations and verbs."""
        verb = _VERB_OF.get(operation.kind)
        if verb is None:
            return "not_granted"
        return None if verb in self.scope else "scope"

    def normal(self) -> Self | None:
        """Return nothing without verbs."""
        return self if self.scope else None

    @classmethod
    def unite(cls, items: Sequence[Self]) -> list[Self]:
        """Return all verbs in one."""
        return [cls(frozenset().union(*(item.scope for item in items)))]

    def fields(self) -> dict[str, Any]:
        """Return the verbs in one text, as `open|extract`."""
        return {"scope": self.resource()}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read the verbs from one text."""
        scope = fields.get("scope")
        if not isinstance(scope, str):
            raise invalid(cls.tag, "scope must be text such as 'open|extract'")
        return cls.parse(scope)

    def resource(self) -> str:
        """Return the verbs, joined by `|`."""
        return "|".join(sorted(self.scope))

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read verbs joined by `|`."""
        return cls(frozenset(filter(None, resource.split("|"))))
