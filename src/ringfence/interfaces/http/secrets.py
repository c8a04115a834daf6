"""`/sandbox/secrets`: a tenant's secrets set, listed by name and revoked; no answer ever holds a value."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from ringfence.errors import InvalidRequest
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.operation.secret import Way
from ringfence.service.callers import Access, Principal
from ringfence.wiring.box import registry_of

router = Router(prefix="/sandbox/secrets", tags=["secrets"])
Owner = Annotated[Principal, Depends(allowed(Access.OPERATOR))]
SecretName = Annotated[str, Path(min_length=1, max_length=64)]


class NewSecret(BaseModel):
    """A secret's value, and what it may be used for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    value: Annotated[SecretStr, Field(min_length=8, max_length=16 * 1024)]
    hosts: Annotated[list[Annotated[str, Field(max_length=300)]], Field(max_length=32)] = []
    ways: Annotated[list[Annotated[Way, Field(strict=False)]], Field(min_length=1, max_length=3)] = [Way.BROKER]


class Secret(BaseModel):
    """A secret as it is listed."""

    name: str
    source: str
    hosts: list[str]
    ways: list[str]
    created_ms: int
    version: int


class SecretList(BaseModel):
    """Every secret of the tenant."""

    secrets: list[Secret]


@router.put("/{name}", response_model=Secret, responses=documented(422))
async def set_secret(who: Owner, house: HouseOf, name: SecretName, asked: NewSecret) -> dict[str, Any]:
    """Keep a secret; one of the same name is replaced."""
    registry = registry_of(house.home)
    entry = await asyncio.to_thread(
        registry.put,
        who.tenant,
        name,
        asked.value.get_secret_value().encode(),
        hosts=tuple(asked.hosts),
        ways=frozenset(asked.ways),
    )
    told = {"secret": entry.name, "secret_version": entry.version, "ways": sorted(entry.ways)}
    await house.note("admin.secret_set", {**told, "tenant": who.tenant, "by": who.key_id})
    return entry.to_json()


@router.get("", response_model=SecretList)
async def list_secrets(who: Owner, house: HouseOf) -> dict[str, Any]:
    """List the tenant's secrets, without their values."""
    entries = await asyncio.to_thread(registry_of(house.home).entries, who.tenant)
    return {"secrets": [entry.to_json() for entry in entries]}


@router.delete("/{name}", status_code=204, responses=documented(404))
async def revoke_secret(who: Owner, house: HouseOf, name: SecretName) -> Response:
    """Revoke a secret: no run is lent it from now on."""
    if not await asyncio.to_thread(registry_of(house.home).remove, who.tenant, name):
        raise InvalidRequest("there is no such secret", reason="unknown_secret")
    await house.note("secret.revoked", {"secret": name, "tenant": who.tenant, "by": who.key_id})
    return Response(status_code=204)
