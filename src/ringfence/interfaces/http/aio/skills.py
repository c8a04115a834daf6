"""`/v1/skills`: the skills that the caller may use, as AIO lists them; who offers them is for the operator to say."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Path, Query
from starlette.responses import Response

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.aio.envelope import Envelope, ExpectedFailure, View, absent, expected, told
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.routes import Router
from ringfence.skills.shelf import not_found
from ringfence.skills.skill import Skill

router = Router(prefix="/v1/skills", tags=["aio skills"])
Name = Annotated[str, Path(min_length=1, max_length=256)]


class SkillsView(View):
    """The skills."""

    skills: list[dict[str, Any]] | None = None


class ContentView(View):
    """One skill, as it is written."""

    name: str
    path: str
    content: str


@router.get("/metadatas", response_model=None, responses={200: {"model": Envelope[SkillsView]}})
async def metadatas(
    seat: AtSeat, names: Annotated[str | None, Query(max_length=1024, description="some of them, with commas")] = None
) -> Response:
    """List the skills."""
    wanted = None if names is None else {name.strip() for name in names.split(",")}
    found = [skill for skill in await seat.manager.skills() if wanted is None or skill.id in wanted]
    return told({"skills": [_form(skill) for skill in found]})


@router.get("/{name}/content", response_model=None, responses={200: {"model": Envelope[ContentView]}})
async def content(seat: AtSeat, name: Name) -> Response:
    """Show what a skill says of itself."""
    with expected("content", name=name, path="", content=""):
        try:
            skill = await seat.manager.skill(name)
        except InvalidRequest:
            raise not_found() from None
    return told({"name": skill.id, "path": _path(skill), "content": json.dumps(skill.to_dict(), indent=2)})


@router.post("/register", response_model=None, responses={200: {"model": Envelope[View]}})
@router.delete("", response_model=None, responses={200: {"model": Envelope[View]}})
async def change(_seat: AtSeat) -> Response:
    """Say that skills are not the caller's to add or take away: whoever runs the service does, with their manifests."""
    raise _not_the_callers()


@router.delete("/{name:aio_name}", response_model=None, responses={200: {"model": Envelope[View]}})
async def delete(_seat: AtSeat, name: Name) -> Response:
    """Say the same, whether there is such a skill or not."""
    del name
    raise _not_the_callers()


def _not_the_callers() -> ExpectedFailure:
    return absent("skills that a caller adds or removes")


def _form(skill: Skill) -> dict[str, Any]:
    return {"name": skill.id, "path": _path(skill), "metadata": skill.to_dict()}


def _path(skill: Skill) -> str:
    """Return a name of it; its files lie on the host, and where is nobody's business."""
    return f"skill:{skill.id}"
