"""Runs in the environment of AIO's client: makes the calls that a test names, one line of JSON each."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

import httpx  # type: ignore[import-not-found,unused-ignore]
from agent_sandbox import AsyncSandbox, Sandbox  # type: ignore[import-not-found,unused-ignore]


def client_of(told: dict[str, Any]) -> Any:
    """Return the client that is asked for."""
    plain = told["flavour"] == "sync"
    kind, transport = (Sandbox, httpx.Client) if plain else (AsyncSandbox, httpx.AsyncClient)
    options: dict[str, Any] = {"base_url": told["url"], "headers": told["headers"], "timeout": 60}
    if told["query"]:
        options["httpx_client"] = transport(params={"api_key": told["query"]}, timeout=60)
    return kind(**options)


async def called(client: Any, asked: dict[str, Any]) -> Any:
    """Make one call and return what it gives, the bytes of a stream as one."""
    call: Callable[..., Any] = reduce(getattr, asked["call"].split("."), client)
    arguments = {
        name: (value["file"], base64.b64decode(value["content"]))
        if isinstance(value, dict) and "file" in value
        else value
        for name, value in asked["arguments"].items()
    }
    given: Any = call(*asked["words"], **arguments)
    if inspect.isawaitable(given):
        given = await given
    if inspect.isasyncgen(given):
        pieces: list[Any] = [piece async for piece in given]
    elif inspect.isgenerator(given):
        pieces = list(given)
    else:
        return given
    return b"".join(pieces)


def form(given: Any) -> dict[str, Any]:
    """Return what a call gave as JSON has it."""
    if isinstance(given, bytes):
        return {"bytes": base64.b64encode(given).decode()}
    return {"returned": given.model_dump(mode="json") if hasattr(given, "model_dump") else given}


async def main() -> None:
    """Make calls until there are no more."""
    client = client_of(json.loads(sys.argv[1]))
    for line in iter(sys.stdin.readline, ""):
        try:
            told = form(await called(client, json.loads(line)))
        except Exception as error:
            body: Any = getattr(error, "body", None)
            body = body.model_dump(mode="json") if hasattr(body, "model_dump") else body
            status = getattr(error, "status_code", None)
            told = {"raised": {"kind": type(error).__name__, "status": status, "body": body, "text": str(error)[:2000]}}
        print(json.dumps(told, default=repr), flush=True)


asyncio.run(main())
