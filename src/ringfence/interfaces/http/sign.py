"""`GET /`: what this is and where to go on, for whoever opens the address by hand; nothing of it needs a key."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

router = APIRouter(tags=["health"])


class Sign(BaseModel):
    """What stands at the door; which version serves is for those with a key, in health."""

    name: str = "ringfence"
    health: str = "/sandbox/health"
    openapi: str = "/openapi.json"
    authentication: str = "Authorization: Bearer <key>; `ringfence key create` makes one"


@router.get("/", response_model=Sign)
async def read_sign() -> Sign:
    """Say where the health answer and the document of everything are."""
    return Sign()
