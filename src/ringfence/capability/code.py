"""Running code: a capability names one language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from ringfence.capability.kind import Kind
from ringfence.dataclass import dataclass
from ringfence.operation.code import Language, parse_language

if TYPE_CHECKING:
    from ringfence.operation.form import Operation


@dataclass(frozen=True, slots=True)
class CodeRun(Kind):
    """Run code of this language in a box; bash is a language here, and never a program of `ProcExec`."""

    language: Language

    tag: ClassVar[str] = "CodeRun"
    name: ClassVar[str] = "code.run"

    def __post_init__(self) -> None:
        object.__setattr__(self, "language", parse_language(self.language))

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations and languages."""
        if operation.kind != "code_run":
            return "not_granted"
        return None if operation.language == self.language else "scope"  # type: ignore[union-attr]  # its kind has one

    def fields(self) -> dict[str, Any]:
        """Return the language."""
        return {"language": str(self.language)}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read the language."""
        return cls(fields.get("language"))  # type: ignore[arg-type]  # refused by parse_language

    def resource(self) -> str:
        """Return the language."""
        return str(self.language)

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read the language."""
        return cls(resource)  # type: ignore[arg-type]
