"""`/keys`: API keys made, listed and revoked by an admin; the text of one is in the answer that made it alone."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Depends, Path
from pydantic import BaseModel, ConfigDict, Field

from ringfence.authority.caller import LOCAL
from ringfence.interfaces.http.door import HouseOf, allowed
from ringfence.interfaces.http.problem import documented
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Access, Principal
from ringfence.service.keys import told

router = Router(prefix="/keys", tags=["keys"])
Admin = Annotated[Principal, Depends(allowed())]
KeyId = Annotated[str, Path(min_length=1, max_length=64)]


class NewKey(BaseModel):
    """What a key is to be for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    access: Annotated[Access, Field(strict=False)]
    tenant: str = Field(LOCAL, min_length=1, max_length=63, description="or * for operators and auditors of all")
    name: str = Field("", max_length=64)
    role: str | None = Field(None, min_length=1, max_length=64, description="the agent role of the policy it acts in")
    days: int | None = Field(None, ge=1, le=36_500, description="how long it is good for; without end if not said")


class Key(BaseModel):
    """A key as it is listed."""

    key_id: str
    kind: str
    state: str = Field(description="active, expired or revoked")
    access: Access
    tenant: str
    name: str
    role: str | None
    created_at: int
    expires_at: int | None


class MadeKey(Key):
    """A key with its text, which is not kept."""

    key: str


class KeyList(BaseModel):
    """Every key."""

    keys: list[Key]


@router.post("", status_code=201, response_model=MadeKey, responses=documented(422))
async def create_key(_: Admin, house: HouseOf, asked: NewKey) -> dict[str, Any]:
    """Make a key; its text is shown this once."""
    made, text = await asyncio.to_thread(
        house.keys.create, asked.access, tenant=asked.tenant, name=asked.name, days=asked.days, role=asked.role
    )
    await house.note("admin.key_created", told(made))
    return {**made.to_json(house.clock.now_ms()), "key": text}


@router.get("", response_model=KeyList)
async def list_keys(_: Admin, house: HouseOf) -> dict[str, Any]:
    """List every key, oldest first."""
    now = house.clock.now_ms()
    return {"keys": [key.to_json(now) for key in await asyncio.to_thread(house.keys.all)]}


@router.delete("/{key_id}", response_model=Key, responses=documented(404))
async def revoke_key(_: Admin, house: HouseOf, key_id: KeyId) -> dict[str, Any]:
    """Make a key void, at once."""
    revoked = await asyncio.to_thread(house.keys.revoke, key_id)
    await house.note("admin.key_revoked", told(revoked))
    return revoked.to_json(house.clock.now_ms())
