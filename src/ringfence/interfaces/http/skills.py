"""`/skills`: the tools with a manifest that a caller may use, and calling one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any

from fastapi import Body, Depends, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from ringfence.authority.levels import RiskLevel
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.interfaces.http.calls import grant_of
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.exec_models import Name, Number, References, TaskRef
from ringfence.interfaces.http.execs import as_json, taking_work
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.outcome_form import result_form
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import correlation_of, project_name
from ringfence.skills.shelf import not_found
from ringfence.skills.skill import SkillOutcome

router = Router(prefix="/skills", tags=["skills"])
Agent = Annotated[Principal, Depends(allowed(Access.AGENT))]
SkillId = Annotated[str, Path(min_length=1, max_length=256)]
_LEVELS = [str(level) for level in RiskLevel]


class SkillView(BaseModel):
    """A skill's manifest, and what it leaves unsaid."""

    model_config = ConfigDict(extra="allow")

    id: str
    tool: str = Field(description="its name as a tool: skill.<id>")
    name: str
    description: str
    version: str
    schema_version: int
    interface: dict[str, Any] = Field(description="`inputs` and `outputs`, each a JSON Schema")
    runtime: dict[str, Any]
    permissions: dict[str, Any]
    capabilities: list[str] = Field(description="the most it may ever do")
    safety_class: str = Field(description=", ".join(_LEVELS))
    side_effect: list[str]
    digest: str = Field(description="the hash of everything that it is")
    available: bool
    unavailable_reason: str | None


class SkillList(BaseModel):
    """The skills that the caller may use, by id."""

    skills: list[SkillView]


class Invocation(BaseModel):
    """One call of a skill."""

    model_config = ConfigDict(extra="forbid", strict=True)

    inputs: dict[str, Any] = Field(default_factory=dict, description="what the skill's `interface.inputs` describes")
    project_id: Name | None = None
    conversation_id: Name | None = None
    timeout_ms: Number | None = Field(None, description="at most what the manifest and the policy allow")
    task_ref: Name | TaskRef | None = None
    correlation: References | None = None


class InvocationView(BaseModel):
    """What came of a call; `outputs` is null unless they are what the skill's schema says."""

    skill_id: str
    success: bool
    outputs: Any
    reason: str | None = Field(description="`output_invalid`, or what ended the run")
    result: dict[str, Any] = Field(description="the run behind it, as executions show it")


@router.get("", response_model=None, responses={200: {"model": SkillList}})
async def list_skills(who: Agent, house: HouseOf) -> Response:
    """List the skills that can be called, with the schemas of what goes in and comes out."""
    return as_json({"skills": [skill.to_dict() for skill in await house.manager_for(who).skills()]})


@router.get("/{skill_id}", response_model=None, responses={200: {"model": SkillView}, **documented(404)})
async def show_skill(who: Agent, house: HouseOf, skill_id: SkillId) -> Response:
    """Show one skill; one with mistakes is none to whoever might call it."""
    try:
        return as_json((await house.manager_for(who).skill(skill_id)).to_dict())
    except InvalidRequest:
        raise not_found() from None


@router.post(
    "/{skill_id}/invoke", response_model=None, responses={200: {"model": InvocationView}, **documented(404, 409, 504)}
)
async def invoke_skill(
    request: Request,
    who: Agent,
    house: HouseOf,
    skill_id: SkillId,
    body: Annotated[Invocation, Body()],
) -> Response:
    """Call a skill and wait for it; a program that fails, or outputs that are not valid, are answers like any other.

    Whoever leaves takes the call with him, unless it has an `Idempotency-Key`, by which he can ask for its outputs.
    """
    execs = taking_work(house)
    asked = body.model_dump(exclude_unset=True, exclude_none=True, exclude={"inputs"})
    correlation = correlation_of(asked, request_id=getattr(request.state, "request_id", None))
    named = correlation.project_id or correlation.conversation_id
    project = None if named is None else project_name(named)
    manager = await house.manager_under(who, grant_of(request), project, correlation)

    async def call() -> SkillOutcome:
        async with execs.turn_for(who, correlation):
            return await manager.invoke(
                skill_id, body.inputs, timeout=None if body.timeout_ms is None else body.timeout_ms / 1000
            )

    outcome = await _while_there(request, call())
    return as_json(
        {
            "skill_id": outcome.skill_id,
            "success": outcome.success,
            "outputs": outcome.outputs,
            "reason": outcome.reason,
            "result": result_form(outcome.result),
        }
    )


async def _while_there(request: Request, work: Coroutine[Any, Any, SkillOutcome]) -> SkillOutcome:
    """Do the work, unless the caller leaves before it is done."""
    working = asyncio.ensure_future(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()  # which kills the run and everything it started
            await asyncio.wait({working})
    if working.cancelled():
        raise Unavailable("the caller has left", reason="closed")
    return working.result()
