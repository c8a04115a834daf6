"""What every kind of capability can do: meet another, judge an operation, and say itself in one way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.operation.form import Operation

# In order of how far an operation got before it was refused; the set reports the last.
REFUSALS = ("not_granted", "tool", "host", "path", "scheme", "port", "scope", "method", "arguments")


class Kind(ABC):
    """The base of the closed union; a capability in hand is always in its normal form."""

    __slots__ = ()

    tag: ClassVar[str]
    """Its name in JSON."""
    name: ClassVar[str]
    """Its `domain.action` in the string form."""

    def meet(self, other: Kind) -> Kind | None:
        """Return what allows exactly what both allow, or nothing; kinds that name one thing meet only themselves."""
        return self if self == other else None

    def is_within(self, other: Kind) -> bool:
        """Whether `other` allows all that this allows."""
        return self.meet(other) == self

    @abstractmethod
    def refusal(self, operation: Operation) -> str | None:
        """Return why this does not allow `operation`, or nothing when it does."""

    def allows(self, operation: Operation) -> bool:
        """Whether `operation` may be done on the strength of this capability alone."""
        return self.refusal(operation) is None

    def normal(self) -> Self | None:
        """Return the capability in its one spelling, or nothing when it allows nothing."""
        return self

    @classmethod
    def unite(cls, items: Sequence[Self]) -> list[Self]:
        """Return the shortest list that allows the same: here, what another one covers is dropped."""
        distinct = list(dict.fromkeys(items))
        return [item for item in distinct if not any(item.is_within(other) for other in distinct if other is not item)]

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return its fields as JSON."""

    @classmethod
    @abstractmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read what `fields` returns; the caller has checked the names.

        Raises:
            InvalidRequest: A value is wrong.
        """

    @abstractmethod
    def resource(self) -> str:
        """Return the part after the colon in the string form."""

    @classmethod
    @abstractmethod
    def parse(cls, resource: str) -> Self:
        """Read what `resource` returns.

        Raises:
            InvalidRequest: It is not the resource of this kind.
        """

    def __str__(self) -> str:
        return f"{self.name}:{self.resource()}"


def invalid(tag: str, problem: str, fix: str | None = None) -> InvalidRequest:
    """Return the error for a capability that cannot be."""
    return InvalidRequest(f"{tag}: {problem}", reason="invalid_capability", fix=fix)
