"""Programs: a capability names one executable, never a shell, and perhaps what its arguments must look like."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ringfence.capability.canonical import canonical
from ringfence.capability.kind import Kind, invalid
from ringfence.capability.template import Template, read_template
from ringfence.dataclass import dataclass

if TYPE_CHECKING:
    from ringfence.operation import brokered
    from ringfence.operation.form import Operation

# Bare names only: a path would let the caller choose the binary.
_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}\Z")
# How many steps of a matcher the arguments of one program may take.
MAX_WORK = 1 << 18
# What reads its argument as a script of shell commands; running one is `CodeRun`, inside a box.
MULTICALL = frozenset({"busybox", "toybox"})
SHELLS = MULTICALL | {
    *("ash", "bash", "csh", "dash", "fish", "hush", "ksh", "ksh93", "lksh", "loksh", "mksh", "oksh", "osh", "pdksh"),
    *("posh", "pwsh", "rbash", "rksh", "rzsh", "sash", "sh", "static-sh", "tcsh", "yash", "ysh", "zsh"),
}


@dataclass(frozen=True, slots=True)
class ProcExec(Kind):
    """Start one program; with templates, only with arguments that all of them match."""

    tool: str
    templates: frozenset[Template] = frozenset()

    tag: ClassVar[str] = "ProcExec"
    name: ClassVar[str] = "proc.exec"

    def __post_init__(self) -> None:
        if not is_program(self.tool):
            raise invalid(self.tag, f"tool must be the bare name of a program, not {self.tool!r}")
        if self.tool in SHELLS:
            raise invalid(self.tag, f"{self.tool} is a shell", fix="grant CodeRun with the language bash instead")

    def meet(self, other: Kind) -> ProcExec | None:
        """Return the same program, with the templates of both."""
        if not isinstance(other, ProcExec) or other.tool != self.tool:
            return None
        return ProcExec(self.tool, self.templates | other.templates)

    def is_within(self, other: Kind) -> bool:
        """Whether the other is for the same program and has no template more; without making a meet."""
        return isinstance(other, ProcExec) and other.tool == self.tool and self.templates >= other.templates

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations, programs and arguments."""
        if operation.kind != "proc_exec":
            return "not_granted"
        wanted = cast("brokered.ProcExec", operation)
        if wanted.tool != self.tool:
            return "tool"
        # so many arguments for so large templates are none that anybody has written a template for
        if sum(template.work(wanted.args) for template in self.templates) > MAX_WORK:
            return "arguments"
        return None if all(template.matches(wanted.args) for template in self.templates) else "arguments"

    def fields(self) -> dict[str, Any]:
        """Return the program, and the templates if there are any."""
        form: dict[str, Any] = {"tool": self.tool}
        if self.templates:
            form["templates"] = sorted((template.fields() for template in self.templates), key=canonical)
        return form

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read a program and perhaps templates."""
        templates = fields.get("templates", [])
        if not isinstance(templates, list):
            raise invalid(cls.tag, "templates must be a list")
        return cls(fields.get("tool"), frozenset(map(read_template, templates)))  # type: ignore[arg-type]

    def resource(self) -> str:
        """Return the program, and the templates as JSON after a colon."""
        templates = self.fields().get("templates")
        return f"{self.tool}:{canonical(templates).decode()}" if templates else self.tool

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read a program and perhaps templates."""
        tool, colon, templates = resource.partition(":")
        try:
            return cls.read({"tool": tool, "templates": json.loads(templates) if colon else []})
        except (ValueError, RecursionError):
            raise invalid(cls.tag, f"{templates[:100]!r} is not JSON") from None


def is_program(name: object) -> bool:
    """Whether `name` can be the bare name of a program."""
    return isinstance(name, str) and _TOOL.match(name) is not None
