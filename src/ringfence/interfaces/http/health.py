"""`GET /sandbox/health`: alive or not for everybody, and for operators what this instance can do and what is wrong."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()

@router.get("/sandbox/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}
