"""Fixtures that ask something of their client: what to ask, and whether all is answered, a program in a box decides.

Clients of 2026-07-28 are given an `input_required` result and call again; of older ones it is asked while they wait.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import MISSING_REQUIRED_CLIENT_CAPABILITY

from ringfence.facade import ExecutionRequest, SandboxManager
from ringfence.interfaces.mcp.offer import Arguments, Carry, Offer, hints_of_tool
from ringfence.outcome import OnOutput

NEW = "2026-07-28"
NEEDED = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
PROGRAM = """
import json, sys
given = json.load(sys.stdin)
rounds, answers, at = given["rounds"], given["answers"], int(given["state"] or 0)
if not rounds[at].keys() - answers.keys():
    at, answers = at + 1, {} if at + 1 < len(rounds) else answers
if at < len(rounds):
    left = {key: ask for key, ask in rounds[at].items() if key not in answers}
    print(json.dumps({"ask": left, "state": str(at)}))
else:
    text = f"{given['said']}: {json.dumps(answers)}"
    print(json.dumps({"content": [{"type": "text", "text": text}]}))
"""
LOGGING = """
import time
for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
    print(said, flush=True)
    time.sleep(0.05)
"""


def form(message: str, /, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt: str, tokens: int = 100) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": tokens}}


TEXT, ROOTS = {"type": "string"}, {"method": "roots/list", "params": {}}
NAME = form("What is your name?", name=TEXT)
CONFIRM = form("Please confirm", ok={"type": "boolean"})
TITLED = [{"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)]
DEFAULTS = form(
    "Is this right?",
    name={"type": "string", "default": "John Doe"},
    age={"type": "integer", "default": 30},
    score={"type": "number", "default": 95.5},
    status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    verified={"type": "boolean", "default": True},
)
PLAIN = {"type": "string", "enum": ["option1", "option2", "option3"]}
ENUMS = form(
    "Which of them?",
    untitledSingle=PLAIN,
    titledSingle={"type": "string", "oneOf": TITLED},
    legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
    untitledMulti={"type": "array", "items": PLAIN},
    titledMulti={"type": "array", "items": {"anyOf": TITLED}},
)


@dataclass(frozen=True)
class Asking:
    """What is asked, round by round; `keeps` says that the client carries the number of the round."""

    rounds: list[dict[str, Any]]
    keeps: bool = False
    only_declared: bool = False
    said: str = "state-ok"


ASKING = {
    "test_elicitation": Asking([{"you": form("Please", username=TEXT, email=TEXT)}], said="User response"),
    "test_elicitation_sep1034_defaults": Asking([{"all": DEFAULTS}], said="Elicitation completed"),
    "test_elicitation_sep1330_enums": Asking([{"all": ENUMS}], said="Elicitation completed"),
    "test_sampling": Asking([{"model": sampling("prompt")}], said="LLM response"),
    "test_missing_capability": Asking([{"model": sampling("prompt")}]),
    "test_input_required_result_elicitation": Asking([{"user_name": NAME}], said="Hello"),
    "test_input_required_result_sampling": Asking([{"capital_question": sampling("What is the capital of France?")}]),
    "test_input_required_result_list_roots": Asking([{"client_roots": ROOTS}]),
    "test_input_required_result_request_state": Asking([{"confirm": CONFIRM}], keeps=True),
    "test_input_required_result_multiple_inputs": Asking(
        [{"user_name": NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ROOTS}], keeps=True
    ),
    "test_input_required_result_multi_round": Asking(
        [{"step1": NAME}, {"step2": form("Step 2: What is your favorite color?", color=TEXT)}], keeps=True
    ),
    "test_input_required_result_tampered_state": Asking([{"confirm": CONFIRM}], keeps=True),
    "test_input_required_result_capabilities": Asking(
        [{"name": NAME, "model": sampling("What is the capital of France?")}], only_declared=True
    ),
    "test_input_required_result_prompt": Asking([{"user_context": form("What context?", context=TEXT)}]),
}
PROMPT = "test_input_required_result_prompt"
ARGUMENTS = {"test_elicitation": "message", "test_sampling": "prompt"}
ASKED_BY: ContextVar[Any] = ContextVar("asked_by")


def install(server: Server[Any]) -> None:
    """Have whatever is asked know its request, and nobody invent a state that was not given to them."""

    async def remember(ctx: Any, call_next: Any) -> Any:
        ASKED_BY.set(ctx)
        return await call_next(ctx)

    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="ringfence"))
    server.middleware.append(remember)


async def answered(manager: SandboxManager, name: str) -> Any:
    """Return the content, or the result that asks the client for what is missing."""
    context, asking = ASKED_BY.get(), ASKING[name]
    given = context.params or {}
    answers, state = given.get("inputResponses") or {}, given.get("requestState")
    while True:
        rounds = [_askable(asking, context, each) for each in asking.rounds]
        told = {"rounds": rounds, "answers": answers, "state": state, "said": asking.said}
        result = await manager.execute(ExecutionRequest(PROGRAM, stdin=json.dumps(told)))
        assert result.success, result
        decided = json.loads(result.stdout)
        if "content" in decided:
            return decided
        if context.protocol_version >= NEW:
            return types.InputRequiredResult.model_validate(
                {"inputRequests": decided["ask"], "requestState": decided["state"] if asking.keeps else None}
            )
        answers = {key: await _ask(context, ask) for key, ask in decided["ask"].items()}
        state = decided["state"]


def _askable(asking: Asking, context: Any, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the client can be asked; what it needs and did not declare is an error that names it."""
    declared = context.session.client_capabilities
    lacks = {key for key, ask in wanted.items() if getattr(declared, NEEDED[ask["method"]], None) is None}
    if lacks and not asking.only_declared:
        needed: dict[str, Any] = {NEEDED[wanted[key]["method"]]: {} for key in lacks}
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY, "the client lacks a capability", {"requiredCapabilities": needed}
        )
    return {key: ask for key, ask in wanted.items() if key not in lacks}


async def _ask(context: Any, ask: Mapping[str, Any]) -> dict[str, Any]:
    session, params, related = context.session, ask["params"], context.request_id
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        if ask["method"] == "elicitation/create":
            answer = await session.elicit_form(params["message"], params["requestedSchema"], related)
        else:
            messages = [types.SamplingMessage.model_validate(message) for message in params["messages"]]
            answer = await session.create_message(messages, max_tokens=params["maxTokens"], related_request_id=related)
    found: dict[str, Any] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


async def logged(manager: SandboxManager, _arguments: Arguments, _on_output: OnOutput) -> types.CallToolResult:
    """Tell the client of every line while the program runs."""
    context = ASKED_BY.get()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    async def send() -> None:
        while (line := await lines.get()) is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await context.session.send_log_message("info", line, related_request_id=context.request_id)

    sending = asyncio.ensure_future(send())
    try:
        await manager.execute(
            ExecutionRequest(LOGGING), on_output=lambda _, data: lines.put_nowait(data.decode().strip())
        )
    finally:
        lines.put_nowait(None)
        await sending
    return types.CallToolResult(content=[types.TextContent(text="logged")])


def _offer(name: str, told: Carry | None = None) -> Offer:
    async def carry(manager: SandboxManager, _arguments: Arguments, _on_output: OnOutput) -> Any:
        found = await answered(manager, name)
        return types.CallToolResult.model_validate(found) if isinstance(found, dict) else found

    taken = ARGUMENTS.get(name)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {} if taken is None else {taken: {"type": "string"}},
        "additionalProperties": False,
    }
    return Offer(name, name, f"Fixture {name}", schema, None, hints_of_tool("code_run"), told or carry, lambda _: None)


OFFERS = (
    *(_offer(name) for name in ASKING if name != PROMPT),
    *(_offer(name, logged) for name in ("test_tool_with_logging", "test_logging_tool")),
)
