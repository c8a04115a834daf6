"""`GET /sandbox/health`: alive or not for everybody, and for operators what this instance can do and what is wrong."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from ringfence.interfaces.http.door import HouseOf, principal_of
from ringfence.interfaces.http.routes import Router
from ringfence.service import health as account
from ringfence.service.callers import Access

router = Router(tags=["health"])


class HealthCheck(BaseModel):
    """One thing that was looked at."""

    name: str
    status: str = Field(description="green or red")
    needed: bool = Field(description="whether the service is degraded without it")
    detail: str


class Health(BaseModel):
    """The short form is `status` alone; the rest is for operators and admins."""

    model_config = ConfigDict(extra="forbid")

    status: str = Field(description="ok, degraded or draining")
    version: str | None = None
    runtime_mode: str | None = Field(None, description="linux, wsl or windows")
    workspace_root_native: str | None = None
    writable: bool | None = None
    docker_cli_path: str | None = None
    docker_version: str | None = None
    docker_context: str | None = None
    backends: list[dict[str, Any]] | None = None
    languages: dict[str, dict[str, Any]] | None = None
    pool: dict[str, int] | None = None
    executions: dict[str, int] | None = None
    domains: list[str] | None = None
    checks: list[HealthCheck] | None = None


@router.get("/sandbox/health", response_model=Health, response_model_exclude_unset=True)
async def get_health(request: Request, house: HouseOf) -> dict[str, Any]:
    """Say whether the service takes work; in full to operators and admins."""
    who = principal_of(request)
    if who is None or not who.may(Access.OPERATOR):
        well = account.is_well(house)
        return {"status": "draining" if house.draining else "ok" if well else "degraded"}
    return await asyncio.to_thread(account.look, house, everywhere=who.everywhere)
