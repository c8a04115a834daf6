"""Servers of the protocol as clients meet them: a command that was started, or an address with a key."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.command_line import COMMAND, surroundings

from ringfence.clock import SystemClock
from ringfence.database.address import open_database
from ringfence.service.callers import Access
from ringfence.service.keys import ApiKeys

Era = Literal["auto", "legacy"]
VERSION_OF: dict[Era, str] = {"auto": "2026-07-28", "legacy": "2025-11-25"}


@dataclass(frozen=True)
class HttpServer:
    """A server that listens, and how to get in."""

    url: str
    key: str
    process: subprocess.Popen[str]


@asynccontextmanager
async def over_stdio(home: Path, *words: str, era: Era = "auto", log: Path | None = None) -> AsyncIterator[Client]:
    """Start the command as a client does, and talk to it."""
    given = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], "mcp", *words], env=surroundings(home))
    with (log or home / "mcp.log").open("w") as errlog:
        async with Client(stdio_client(given, errlog=errlog), mode=era) as client:
            yield client


def listening(home: Path, *words: str) -> AbstractContextManager[HttpServer]:
    """Start `ringfence mcp` as an operator does, and wait for the address it says."""
    return _listening(home, "mcp", "--transport", "http", "--port", "0", *words)


def serving(home: Path, *words: str) -> AbstractContextManager[HttpServer]:
    """Start the whole service, which has the same door at `/mcp`."""
    return _listening(home, "serve", "--port", "0", *words)


@contextmanager
def _listening(home: Path, *words: str) -> Iterator[HttpServer]:
    key = new_key(home)
    process = subprocess.Popen(
        [*COMMAND, *words],
        env=surroundings(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"(http://[^/\s]+)", line)
            if found:
                yield HttpServer(f"{found[1]}/mcp", key, process)
                return
        raise AssertionError("the server ended before it listened")
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def new_key(home: Path, *, tenant: str = "local", access: Access = Access.AGENT) -> str:
    """Make a key, as `ringfence key create` does."""
    database = open_database(home, None)
    try:
        return ApiKeys(database, SystemClock(), home).create(access, tenant=tenant)[1]
    finally:
        database.close()


@asynccontextmanager
async def over_http(
    server: HttpServer, *, key: str | None = None, era: Era = "auto", query: str = ""
) -> AsyncIterator[Client]:
    """Talk to a server that listens, with its own key or another."""
    headers = {"Authorization": f"Bearer {key or server.key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(server.url + query, http_client=http), mode=era) as client,
    ):
        yield client


def structured(result: Any) -> dict[str, Any]:
    """Return what a tool gave to programs."""
    fields = result.structured_content
    assert isinstance(fields, dict)
    return fields


def text_of(result: Any) -> str:
    """Return what a tool gave to the model."""
    (block,) = result.content
    return str(block.text)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; the test's own timeout is the bound."""
    while not condition():  # noqa: ASYNC110  the kernel and other processes make it true
        await asyncio.sleep(0.01)


def running(marker: str) -> list[int]:
    """Return the host's pids of programs that carry `marker` as their name."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == marker.encode():
                found.append(int(entry.name))
    return found
