"""Puts the AIO-compatible surface into an application of the service, for whoever asked for it."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from ringfence.interfaces.http.aio import (
    absent,
    bash,
    code,
    envelope,
    file,
    jupyter,
    mcp,
    nodejs,
    sandbox,
    shell,
    skills,
    terminal,
)
from ringfence.service.aio.sessions import Desk

_ROUTERS: Final = tuple(
    part.router for part in (bash, shell, file, code, jupyter, nodejs, sandbox, mcp, skills, terminal, absent)
)


def install(app: FastAPI) -> None:
    """Add the routes and what they remember; `wrap` comes when all other layers are there."""
    app.state.aio = Desk()
    app.state.own_refusals = envelope.refusals
    app.state.own_schemas = {"Refused": envelope.Refused.model_json_schema()}
    envelope.install(app)
    for router in _ROUTERS:
        app.include_router(router)
        app.state.routers.append(router)


def wrap(app: FastAPI) -> None:
    """Put the layer around all others that makes an envelope of every problem."""
    app.add_middleware(envelope.Envelopes)
