"""An agent's tools as its interface to the world: each call becomes one operation, and goes the way of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from ringfence import arguments
from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest, RingfenceError, ToolDenied
from ringfence.facade import SandboxManager
from ringfence.operation.form import from_json
from ringfence.outcome import ExecutionResult, Outcome

DEFAULT_TIMEOUT_SECONDS = 30

# what a model may say of its own accord: packages and limits are for whoever made the manager
_CODE = frozenset({"code", "language", "timeout", "args", "stdin", "files"})
_SHELL = frozenset({"command", "timeout", "files"})
_OPERATION_OF = {
    **dict.fromkeys(("file_read", "fs_read"), "fs_read"),
    **dict.fromkeys(("file_write", "fs_write"), "fs_write"),
    **dict.fromkeys(("file_list", "fs_list"), "fs_list"),
    **dict.fromkeys(("file_delete", "fs_delete"), "fs_delete"),
    **{kind: kind for kind in ("fs_stat", "fs_mkdir", "tmp_alloc", "tmp_free", "proc_exec", "net_http")},
    **{kind: kind for kind in ("ws_snapshot", "ws_snapshots", "ws_restore", "ws_reset", "ws_diff")},
    **{kind: kind for kind in ("ws_snapshot_delete", "ws_checkout")},
    **{kind: kind for kind in ("browser_nav", "browser_extract", "browser_screenshot")},
    **{kind: kind for kind in ("browser_click", "browser_type", "browser_close")},
}


class Action(Protocol):
    """What an agent wants done: any object with a tool's name and its parameters."""

    @property
    def tool(self) -> str:
        """The name of the tool."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters, by name."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One use of a tool, for who has no such type of their own."""

    tool: str
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


class WorldInterface:
    """The tools of one session: running code, its files, programs, temporary space."""

    def __init__(self, manager: SandboxManager) -> None:
        """Every call is carried out by `manager`, under its policy, its role and whatever grant it acts under."""
        self._manager = manager

    async def execute(self, call: Action | Mapping[str, Any]) -> Outcome:
        """Carry out one call, an object or a mapping with `tool` and `params`.

        `code_run` (or `run_code`) and `shell_exec` have 30 seconds unless the call says otherwise. There are
        `file_read`, `file_write`, `file_list` and `file_delete`, and every operation by its own name.

        Raises:
            ToolDenied: There is no such tool, or the policy does not allow it; nothing ran.
            InvalidRequest: The call is not one, or a parameter is missing, unknown or has no such value.
        """
        tool, params = _parts(call)
        match tool:
            case "code_run" | "run_code":
                _check(tool, params, _CODE, "code")
                return await self._manager.execute_code(**{"timeout": DEFAULT_TIMEOUT_SECONDS, **params})
            case "shell_exec":
                _check(tool, params, _SHELL, "command")
                return await self._manager.execute_shell(**{"timeout": DEFAULT_TIMEOUT_SECONDS, **params})
            case _ if tool in _OPERATION_OF:
                return await self._manager.perform(from_json(_form(_OPERATION_OF[tool], params)))
            case _:
                raise ToolDenied(f"there is no tool {tool[:100]!r} here", reason="unknown_tool")


class RunCodeTool:
    """Running code as one tool of an agent, for frameworks that hold each tool as an object."""

    name = "run_code"

    def __init__(self, manager: SandboxManager) -> None:
        """Every run is `manager`'s, under its policy, role and session."""
        self._manager = manager

    async def execute(
        self,
        code: str,
        language: str = "python",
        timeout: float | None = DEFAULT_TIMEOUT_SECONDS,  # noqa: ASYNC109  the run's own limit, kept by killing it
    ) -> ExecutionResult:
        """Run `code`; what it does to itself is in the result.

        Raises:
            InvalidRequest: There is no such language, or the timeout is more than the policy allows; nothing ran.
            Denied: The policy does not allow it; nothing ran.
        """
        return await self._manager.execute_code(language=language, code=code, timeout=timeout)


async def act_node(state: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, list[Outcome | RingfenceError]]:
    """Carry out the state's `pending_actions` one after another with the context's `sandbox_manager`.

    The results are in the order of the actions. In the place of one that was refused is the error that says why: what
    was done before it has happened, and its results must not be lost.
    """
    world = WorldInterface(context["sandbox_manager"])
    results: list[Outcome | RingfenceError] = []
    for action in state["pending_actions"]:
        try:
            results.append(await world.execute(action))
        except RingfenceError as refusal:
            results.append(refusal)
    return {"tool_results": results}


def _parts(call: Action | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(call, Mapping):
        if unknown := call.keys() - {"tool", "params"}:
            raise _refused(min(map(str, unknown)), "is not a field of a tool call")
        tool, params = call.get("tool"), call.get("params", {})
    else:
        tool, params = getattr(call, "tool", None), getattr(call, "params", None)
    if not isinstance(tool, str):
        raise _refused("tool", "must be the name of a tool")
    if not isinstance(params, Mapping) or not all(isinstance(name, str) for name in params):
        raise _refused("params", "must map names to values")
    return tool, dict(params)


def _check(tool: str, params: dict[str, Any], known: frozenset[str], needed: str) -> None:
    if unknown := params.keys() - known:
        raise _refused(min(unknown), f"is not a parameter of {tool}")
    if needed not in params:
        raise _refused(needed, f"is missing from {tool}")


def _form(kind: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON form of the operation; a file's content may be given as it is."""
    if "op" in params:  # would make another operation of it than the tool's name says
        raise _refused("op", f"is not a field of {kind}")
    if kind == "fs_write" and "content" in params and "bytes_b64" not in params:
        params["bytes_b64"] = arguments.as_bytes("content", params.pop("content"))
    return {**params, "op": kind}


def _refused(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name[:100]} {problem}", reason="invalid_operation", field=name[:100])
