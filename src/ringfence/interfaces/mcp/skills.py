"""Skills as tools: `skill.<id>`, with the schemas and the hints of its manifest, called through the manager alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mcp_types import CallToolResult, TextContent

from ringfence.errors import CapabilityBlocked
from ringfence.interfaces.mcp.answers import MOST_OUTPUT, head_and_tail, run_fields, run_text
from ringfence.interfaces.mcp.offer import Arguments, Offer, hints_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ringfence.facade import SandboxManager
    from ringfence.outcome import OnOutput
    from ringfence.skills.skill import Skill, SkillOutcome

PREFIX: Final = "skill."
MOST_OUTPUTS: Final = 1 << 20
"""Characters of a skill's outputs; more than that is no answer for a model."""
RUN_META: Final = "ringfence/run"
"""Under which member of `_meta` the run behind a skill's outputs is told of."""


async def offers(manager: SandboxManager) -> list[Offer]:
    """Return the skills that the manager's role may call, and that this machine can run."""
    return [_offer(skill) for skill in await manager.skills() if skill.unavailable is None]


async def find(manager: SandboxManager, name: str) -> Offer | None:
    """Return the skill that a client calls `name`."""
    if not name.startswith(PREFIX):
        return None
    return next((offer for offer in await offers(manager) if offer.name == name), None)


def _offer(skill: Skill) -> Offer:
    manifest = skill.manifest
    skill_id = skill.id

    async def carry(manager: SandboxManager, arguments: Arguments, on_output: OnOutput) -> CallToolResult:
        return _answer(await manager.invoke(skill_id, dict(arguments), on_output=on_output))

    return Offer(
        skill.tool,
        manifest.name,
        manifest.description,
        manifest.input_schema,
        manifest.output_schema if _is_object(manifest.output_schema) else None,
        hints_of(manifest.side_effects),
        carry,
        lambda _arguments: f"the tool {skill_id}",
        takes_turn=True,
        # the pipeline holds them against the manifest, within a cost that it has counted
        is_checked_later=True,
        # only what the manifest describes may be in the structured content of a skill
        has_errors_in_structure=False,
    )


def _is_object(schema: Mapping[str, Any]) -> bool:
    """Whether the outputs are an object: clients before 2026-07-28 know no other structure."""
    return schema.get("type") == "object"


def _answer(outcome: SkillOutcome) -> CallToolResult:
    fields = run_fields(outcome.result)
    meta = {RUN_META: {name: fields[name] for name in ("status", "exit_code", "elapsed_ms", "exec_id", "evidence_id")}}
    if not outcome.success:
        why = f"\n[{outcome.reason}]" if outcome.reason else ""
        return CallToolResult(content=[TextContent(text=run_text(fields) + why)], is_error=True, _meta=meta)
    text = json.dumps(outcome.outputs, ensure_ascii=False)
    if len(text) > MOST_OUTPUTS:
        raise CapabilityBlocked(
            f"the outputs are {len(text)} characters long, and {MOST_OUTPUTS} are the most", reason="too_large"
        )
    shown = TextContent(text=head_and_tail(text, MOST_OUTPUT)[0])
    structured = outcome.outputs if isinstance(outcome.outputs, dict) else None
    return CallToolResult(content=[shown], structured_content=structured, _meta=meta)
