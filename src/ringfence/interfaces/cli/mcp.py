"""`ringfence mcp`: the boxes of this machine as tools, for a model's client that starts it or knows its address."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.errors import Unavailable
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from ringfence.service.house import House
    from ringfence.service.settings import ServiceSettings


def mcp_command(words: Sequence[str]) -> int:
    """Carry out `ringfence mcp` and return the exit code."""
    parser = StrictParser(prog="ringfence mcp")
    parser.add_argument("--transport", choices=("stdio", "http"), default="stdio")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--project")
    parser.add_argument("--policy")
    parser.add_argument("--role")
    parser.add_argument("--skills")
    parser.add_argument("--home", type=Path)
    options = parser.parse_args(list(words))
    if find_spec("mcp") is None:
        raise Unavailable("the MCP server is not installed", reason="extra_missing", fix="pip install 'ringfence[mcp]'")
    return _serve_http(options) if options.transport == "http" else _serve_stdio(options)


def _serve_stdio(options: Namespace) -> int:
    if options.host is not None or options.port is not None:
        raise UsageError("--host and --port are for --transport http", fix="leave them out, or add --transport http")
    from ringfence.interfaces.mcp.serving import Serving, serve_stdio

    project = "mcp" if options.project is None else options.project
    given = Serving(project, options.policy, options.role, options.skills, options.home)
    return serve_stdio(given)


def _serve_http(options: Namespace) -> int:
    if options.project is not None:
        raise UsageError("--project is for --transport stdio", fix="let the client's URL name it: /mcp?project=ID")
    if find_spec("fastapi") is None:
        raise Unavailable("the service is not installed", reason="extra_missing", fix="pip install 'ringfence[mcp]'")
    from ringfence.dataclass import replace
    from ringfence.service.listening import only_service_of
    from ringfence.service.settings import LOOPBACK, read_settings
    from ringfence.workspaces.home import default_home

    home = options.home or default_home()
    settings = read_settings(home / "config.toml", must_exist=False, environment=os.environ)
    said: dict[str, Any] = {
        "host": options.host or "127.0.0.1",
        "port": 8322 if options.port is None else options.port,
        "policy": options.policy or settings.policy,
        "skills": options.skills or settings.skills,
    }
    if said["host"] not in LOOPBACK:
        raise UsageError(
            f"ringfence mcp listens on this machine only, not on {said['host']!r}",
            fix="use 'ringfence serve', which has the same tools at /mcp",
        )
    with only_service_of(home):
        return _listen(home, replace(settings, **said), options.role)


def _listen(home: Path, settings: ServiceSettings, role: str | None) -> int:
    import asyncio

    from ringfence.interfaces.http.mcp import PATH, build_alone
    from ringfence.interfaces.http.server import serve
    from ringfence.service.house import open_house
    from ringfence.service.listening import open_port

    with open_port(settings.host, settings.port) as port:  # first: whoever cannot listen must not make a key
        house = open_house(home, settings)
        host, number = port.getsockname()[:2]

        async def ready() -> None:
            key = await _first_key(house)
            if key is not None:
                sys.stderr.write(
                    f"ringfence: this home had no API key; here is one for agents, shown this once:\n  {key}\n"
                )
            address = f"[{host}]" if ":" in host else host
            sys.stderr.write(f"ringfence: serving MCP at http://{address}:{number}{PATH}\n")
            sys.stderr.flush()

        asyncio.run(serve(house, (port,), ready, partial(build_alone, role=role)))
    return 0


async def _first_key(house: House) -> str | None:
    """Return a new key for agents where nobody has any."""
    from ringfence.service.callers import Access
    from ringfence.service.keys import told

    if house.keys.has_active():
        return None
    made, text = house.keys.create(Access.AGENT, name="mcp")
    await house.note("admin.key_created", told(made))
    return text
