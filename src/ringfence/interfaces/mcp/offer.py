"""What a client of the protocol is offered: a tool with its two schemas, its hints, and how to carry it out."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from mcp_types import Tool, ToolAnnotations

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.levels import SideEffect
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsonschema.exceptions import ValidationError
    from mcp_types import CallToolResult

    from ringfence.facade import SandboxManager
    from ringfence.outcome import OnOutput

Arguments = Mapping[str, Any]
Carry = Callable[["SandboxManager", Arguments, "OnOutput"], Coroutine[Any, Any, "CallToolResult"]]
"""Carries out one call for the caller whom the manager acts for, and tells of output as it comes."""

_CHANGES = frozenset({SideEffect.WRITE, SideEffect.FILESYSTEM, SideEffect.PROCESS, SideEffect.BROWSER})
_OUTWARD = frozenset({SideEffect.NETWORK, SideEffect.BROWSER})
_MOST_QUOTED = 160


@dataclass(frozen=True)
class Offer:
    """One tool; what its arguments may be is decided by `input_schema` before anything is carried out."""

    name: str
    title: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    hints: ToolAnnotations
    carry: Carry
    needs: Callable[[Arguments], str | None]
    """Says, as evidence does, what a policy or a grant has to allow: `code.run:python`; None is what none can."""
    takes_turn: bool = False
    """Whether it needs a box while its caller waits, and so waits for its turn in a service."""
    is_checked_later: bool = False
    """Whether the pipeline holds the arguments against the schema, and not the door."""
    has_errors_in_structure: bool = True
    """Whether the output schema has a place for the error that comes instead of a result."""

    def described(self) -> Tool:
        """Return the tool as `tools/list` shows it."""
        return Tool(
            name=self.name,
            title=self.title,
            description=self.description,
            input_schema=dict(self.input_schema),
            output_schema=None if self.output_schema is None else dict(self.output_schema),
            annotations=self.hints,
        )

    def check(self, arguments: Arguments) -> None:
        """Refuse arguments that the schema does not know, or has otherwise.

        Raises:
            InvalidRequest: Naming the argument, and never quoting more than a little of it.
        """
        _refuse_endless_numbers(arguments)
        if self.is_checked_later:
            return
        problem = next(iter(self._validator.iter_errors(dict(arguments))), None)
        if problem is not None:
            raise InvalidRequest(
                f"{self.name}: {_said(problem)}",
                reason="invalid_operation",
                fix=f"see the input schema of {self.name} in tools/list",
            )

    @cached_property
    def _validator(self) -> Draft202012Validator:
        return Draft202012Validator(dict(self.input_schema))


def hints_of(side_effects: Iterable[SideEffect], *, idempotent: bool = False) -> ToolAnnotations:
    """Derive what clients are told from what a tool says it does to the world."""
    effects = frozenset(side_effects)
    reads_only = not effects & _CHANGES and not effects & _OUTWARD
    return ToolAnnotations(
        read_only_hint=reads_only,
        destructive_hint=bool(effects & _CHANGES),
        idempotent_hint=reads_only or idempotent,
        open_world_hint=bool(effects & _OUTWARD),
    )


def hints_of_tool(name: str, *, idempotent: bool = False) -> ToolAnnotations:
    """Derive the hints of a built-in from what the catalogue says about the tool that it is a use of."""
    return hints_of(TOOLS[name].side_effect, idempotent=idempotent)


def _refuse_endless_numbers(value: object) -> None:
    """Refuse NaN and the infinities: no bound of a schema holds against a number that compares with nothing."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            raise InvalidRequest("a number must be finite", reason="invalid_operation", fix="leave it out")
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def _said(problem: ValidationError) -> str:
    where = ".".join(str(step)[:40] for step in problem.absolute_path)
    if problem.validator == "additionalProperties":
        schema = problem.schema
        known = ", ".join(sorted(schema.get("properties", {}))) if isinstance(schema, Mapping) else ""
        return f"an argument is not known{f' in {where}' if where else ''}; known are {known}"
    if problem.validator in ("maxLength", "maxItems", "maxProperties", "minLength"):
        return f"{where or 'arguments'}: {problem.validator} is {problem.validator_value}"
    message = problem.message
    if len(message) > _MOST_QUOTED:
        message = f"does not match {problem.validator} of the schema"
    return f"{where}: {message}" if where else message
