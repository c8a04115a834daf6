"""The tools that run code: `run_code` and `run_shell`, each one execution of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ringfence.facade import ExecutionRequest
from ringfence.interfaces.mcp import schemas
from ringfence.interfaces.mcp.answers import of_run
from ringfence.interfaces.mcp.offer import Arguments, Offer, hints_of_tool

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from ringfence.facade import SandboxManager
    from ringfence.outcome import OnOutput


async def _run_code(manager: SandboxManager, arguments: Arguments, on_output: OnOutput) -> CallToolResult:
    request = ExecutionRequest(
        arguments["code"],
        arguments.get("language", "python"),
        arguments.get("timeout"),
        args=arguments.get("args", ()),
        stdin=arguments.get("stdin", ""),
        files=arguments.get("files", {}),
        env=arguments.get("env", {}),
        packages=arguments.get("packages", ()),
        **_asked_for(arguments),
    )
    return of_run(await manager.execute(request, on_output=on_output))


async def _run_shell(manager: SandboxManager, arguments: Arguments, on_output: OnOutput) -> CallToolResult:
    request = ExecutionRequest(
        arguments["command"],
        "bash",
        arguments.get("timeout"),
        stdin=arguments.get("stdin", ""),
        files=arguments.get("files", {}),
        env=arguments.get("env", {}),
        **_asked_for(arguments),
    )
    return of_run(await manager.execute(request, on_output=on_output))


def _asked_for(arguments: Arguments) -> dict[str, Any]:
    """Return what a run asks for beyond its box; each of it has to be granted."""
    return {name: arguments.get(name, ()) for name in ("allow_domains", "secrets")}


OFFERS: Final = (
    Offer(
        "run_code",
        "Run code",
        "Run a program in an isolated box, without network but to granted hosts. Files of the project are in the "
        "working directory and are kept; what it writes to /workspace/artifacts is listed. A program that fails is a "
        "result with its exit code.",
        schemas.RUN_CODE,
        schemas.RAN,
        hints_of_tool("code_run"),
        _run_code,
        lambda arguments: f"code.run:{arguments.get('language', 'python')}",
        takes_turn=True,
    ),
    Offer(
        "run_shell",
        "Run a shell command",
        "Run a bash command line in an isolated box, without network but to granted hosts, in the working directory of "
        "the project.",
        schemas.RUN_SHELL,
        schemas.RAN,
        hints_of_tool("shell_exec"),
        _run_shell,
        lambda _arguments: "code.run:bash",
        takes_turn=True,
    ),
)
