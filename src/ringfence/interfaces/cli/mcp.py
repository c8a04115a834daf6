"""`ringfence mcp`: the boxes of this machine as tools, for a model's client that starts it or knows its address."""

from __future__ import annotations

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
    parser.add_argument("--project", default="mcp")
    parser.add_argument("--policy")
    parser.add_argument("--role")
    parser.add_argument("--home", type=Path)
    options = parser.parse_args(list(words))
    if options.transport == "stdio" and (options.host is not None or options.port is not None):
        raise UsageError("--host and --port are for --transport http", fix="leave them out, or add --transport http")
    if find_spec("mcp") is None:
        raise Unavailable("the MCP server is not installed", reason="extra_missing", fix="pip install 'ringfence[mcp]'")
    from ringfence.interfaces.mcp.serving import Serving, serve_stdio

    serving = Serving(project=options.project, policy=options.policy, role=options.role, home=options.home)
    return serve_stdio(serving)
