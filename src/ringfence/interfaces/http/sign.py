"""`GET /`: what this is and where to go on, for whoever has a key and opens the address by hand."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from pydantic import BaseModel

from ringfence.interfaces.http.door import allowed
from ringfence.interfaces.http.routes import Router
from ringfence.service.callers import Access, Principal

router = Router(tags=["health"])
Anybody = Annotated[Principal, Depends(allowed(*Access))]


class Sign(BaseModel):
    """What stands inside the door; which version serves is for operators, in health."""

    name: str = "ringfence"
    health: str = "/sandbox/health"
    openapi: str = "/openapi.json"


@router.get("/", response_model=Sign)
async def read_sign(_: Anybody) -> Sign:
    """Say where the health answer and the document of everything are."""
    return Sign()
