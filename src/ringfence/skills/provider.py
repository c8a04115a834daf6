"""`SkillsProvider`: the skills as the tools of an agent's framework, which lists them and calls them by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ringfence.errors import ToolDenied

if TYPE_CHECKING:
    from ringfence.skills.skill import Skill, SkillOutcome

PREFIX = "skill."


class Skilled(Protocol):
    """Whoever has skills: a manager, embedded or of a service."""

    async def skills(self) -> list[Skill]:
        """Return those that may be called."""
        ...

    async def invoke(self, skill_id: str, inputs: Mapping[str, Any]) -> SkillOutcome:
        """Call one."""
        ...


class SkillsProvider:
    """Lists skills as tools named `skill.<id>` and calls them."""

    def __init__(self, manager: Skilled) -> None:
        """Every call goes through `manager`, under its policy, role and session."""
        self._manager = manager

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return every tool with its name, description and schemas, in the words of MCP."""
        return [
            {
                "name": skill.tool,
                "title": skill.manifest.name,
                "description": skill.manifest.description,
                "inputSchema": dict(skill.manifest.input_schema),
                "outputSchema": dict(skill.manifest.output_schema),
                "annotations": {"readOnlyHint": skill.read_only, "destructiveHint": not skill.read_only},
            }
            for skill in await self._manager.skills()
        ]

    async def invoke(self, name: str, inputs: Mapping[str, Any]) -> SkillOutcome:
        """Call the tool `name`.

        Raises:
            ToolDenied: It is no skill, or the policy does not let this role use it; nothing ran.
            InvalidRequest: The inputs are not what its schema says.
        """
        if not name.startswith(PREFIX):
            raise ToolDenied("the name of a skill begins with 'skill.'", reason="unknown_tool")
        return await self._manager.invoke(name.removeprefix(PREFIX), inputs)
