"""`/grants`: authority for one call, signed for an admin who hands it on, and made void again."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field

from ringfence.authority.caller import LOCAL, Caller
from ringfence.authority.credential import ProposedCall
from ringfence.authority.limit_names import read_limit
from ringfence.authority.narrowing import Narrowing
from ringfence.capability.budget import INHERITED, read_budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import Denials
from ringfence.capability.form import parse
from ringfence.evidence.effects import harmless_text
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Principal
from ringfence.service.house import House

router = Router(prefix="/grants", tags=["grants"])
Admin = Annotated[Principal, Depends(allowed())]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tenant = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9][a-z0-9_-]*$")]
_DAY_SECONDS = 24 * 3600


class NewGrant(BaseModel):
    """Which call it is for, and what is taken away from what the policy gives."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tool: Name
    call_id: Name
    role: Name | None = None
    tenant: Tenant = LOCAL
    subject_id: Name = LOCAL
    audience: str = Field("", max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")
    ttl_seconds: int = Field(900, ge=1, le=_DAY_SECONDS)
    allow: list[Name] = Field(default_factory=list, max_length=100)
    budget: dict[Name, Annotated[int, Field(ge=0, lt=1 << 53)]] = Field(default_factory=dict, max_length=32)
    limits: dict[Name, Annotated[int, Field(ge=0, lt=1 << 53)]] = Field(default_factory=dict, max_length=32)
    deny_paths: list[Name] = Field(default_factory=list, max_length=100)
    deny_domains: list[Name] = Field(default_factory=list, max_length=100)


class SignedGrant(BaseModel):
    """The token, and what is in it."""

    token: str
    grant_id: str
    expires_at: int
    grant: dict[str, Any]


class Revocation(BaseModel):
    """Whose grant it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tenant: Tenant = LOCAL


class Revoked(BaseModel):
    """What is void now."""

    revoked: str
    name: str
    tenant: str


@router.post("", status_code=201, response_model=SignedGrant, responses=documented(403, 422, 503))
async def issue_grant(_: Admin, house: HouseOf, asked: NewGrant) -> dict[str, Any]:
    """Sign a grant for one call."""
    token, told, fields = await asyncio.to_thread(_issue, house, asked)
    await house.note("grant.issued", told)
    return {"token": token, "grant_id": fields["grant_id"], "expires_at": fields["expires_at"], "grant": fields}


@router.post("/{grant_id}/revoke", response_model=Revoked, responses=documented(422, 503))
async def revoke_grant(_: Admin, house: HouseOf, grant_id: Name, asked: Revocation | None = None) -> dict[str, Any]:
    """Make a grant void for every process, at once; whether it was ever issued is not said."""
    tenant = LOCAL if asked is None else asked.tenant
    await asyncio.to_thread(_revoke, house, grant_id, tenant)
    # after it: a revocation counts even where it cannot be written down
    await house.note("grant.revoked", {"revoked": "grant", "name": harmless_text(grant_id), "tenant": tenant})
    return {"revoked": "grant", "name": grant_id, "tenant": tenant}


def _issue(house: House, asked: NewGrant) -> tuple[str, dict[str, Any], dict[str, Any]]:
    from ringfence.interfaces.cli.grant import issue, policy_of, token_fields
    from ringfence.interfaces.cli.grant_desk import open_desk

    Caller(asked.tenant, asked.subject_id)
    desk = open_desk(house.home)
    narrowing = Narrowing(
        capabilities=Capabilities(map(parse, asked.allow)) if asked.allow else None,
        budget=read_budget(dict(asked.budget)) if asked.budget else INHERITED,
        limits=dict(read_limit(name, value) for name, value in asked.limits.items()),
        denials=Denials(paths=frozenset(asked.deny_paths), domains=frozenset(asked.deny_domains)),
    )
    call = ProposedCall(asked.tenant, asked.subject_id, asked.tool, asked.call_id, asked.audience)
    token, told = issue(
        desk,
        policy_of(house.settings.policy),
        call,
        asked.role,
        lifetime_ms=asked.ttl_seconds * 1000,
        narrowing=narrowing,
    )
    return token, told, token_fields(desk.codec.peek(token))


def _revoke(house: House, grant_id: str, tenant: str) -> None:
    from ringfence.grants.revocations import RevocationFile

    RevocationFile(house.home, house.clock).revoke("grant", grant_id, tenant=tenant)
