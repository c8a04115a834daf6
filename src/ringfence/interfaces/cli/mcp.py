"""`ringfence mcp`: the boxes of this machine as tools, for a model's client that starts it or knows its address."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from ringfence.errors import Unavailable
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError


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
    from dataclasses import replace

    from ringfence.interfaces.mcp.standalone import serve
    from ringfence.service.house import open_house
    from ringfence.service.settings import LOOPBACK, usual_settings
    from ringfence.wiring import default_home

    host = options.host or "127.0.0.1"
    if host not in LOOPBACK:
        raise UsageError(
            f"ringfence mcp listens on this machine only, not on {host!r}",
            fix="use 'ringfence serve', which has the same tools at /mcp",
        )
    settings = replace(usual_settings(), host=host, port=8322 if options.port is None else options.port)
    settings = replace(settings, policy=options.policy, skills=options.skills)
    return serve(open_house(options.home or default_home(), settings), options.role)
