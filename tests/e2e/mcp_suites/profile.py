"""Our own server with the fixtures that the conformance suite asks for: each runs in a box, or is read by a broker.

Only what the suite calls by name is added; transport, keys, checks, policy, box and evidence are those of the door.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.shared.exceptions import MCPError
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.e2e.mcp_suites import asking
from tests.mcp_servers import new_key

from ringfence.facade import ExecutionRequest, SandboxManager
from ringfence.interfaces.http.mcp import behind_the_gate
from ringfence.interfaces.mcp.offer import Arguments, Offer, hints_of_tool
from ringfence.interfaces.mcp.server import BUILT_IN, Offers
from ringfence.interfaces.mcp.streamable import McpDoor
from ringfence.operation.brokered import FsRead
from ringfence.outcome import OnOutput
from ringfence.service.house import open_house
from ringfence.service.settings import usual_settings

# One red point, and one sample of silence.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="

TEXT = {"type": "text", "text": "This is a simple text response for testing."}
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": WAV, "mimeType": "audio/wav"}


def embedded(uri: str, text: str, mime: str = "text/plain") -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": text}}


BLOCKS: dict[str, list[dict[str, Any]]] = {
    "test_simple_text": [TEXT],
    "test_image_content": [IMAGE],
    "test_audio_content": [AUDIO],
    "test_embedded_resource": [embedded("test://embedded-resource", "This is an embedded resource content.")],
    "test_multiple_content_types": [
        {"type": "text", "text": "Multiple content types test:"},
        IMAGE,
        embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json"),
    ],
    "test_error_handling": [{"type": "text", "text": "This tool intentionally returns an error for testing"}],
    "test_tool_with_progress": [{"type": "text", "text": "done"}],
    "test_streaming_elicitation": [{"type": "text", "text": "the server sends no requests to its clients"}],
    "json_schema_2020_12_tool": [TEXT],
    "test_custom_headers": [TEXT],
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
    "test_custom_headers": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": {"type": "string"}},
        "required": ["region"],
        "additionalProperties": False,
    },
}
SLOW = "import time\nfor part in range(4): print(end='', flush=True); time.sleep(0.5)\n"
FILES = {
    "static-text": b"This is the content of the static text resource.",
    "static-binary": PNG.encode(),
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def fixture(name: str) -> Offer:
    """Return a tool whose content a program in a box prints."""
    said = json.dumps({"content": BLOCKS[name], "isError": name == "test_error_handling"})
    code = (SLOW if name == "test_tool_with_progress" else "") + f"print({said!r})"

    async def carry(manager: SandboxManager, _arguments: Arguments, on_output: OnOutput) -> types.CallToolResult:
        result = await manager.execute(ExecutionRequest(code), on_output=on_output)
        assert result.success, result
        return types.CallToolResult.model_validate(json.loads(result.stdout))

    schema = SCHEMAS.get(name, NOTHING)
    hints = hints_of_tool("code_run")
    return Offer(name, name, f"Fixture {name}", schema, None, hints, carry, lambda _: "code.run:python")


MOST_SECONDS = 2
TOLD: dict[str, tuple[str, dict[str, Any]]] = {
    "greet": ("print(f\"Hello, {given['name']}!\")", {"name": {"type": "string"}}),
    # what takes longer than a caller waits for is a process here: there are no tasks to make of it
    "slow_compute": (
        "import time; time.sleep(given['seconds']); print(given['label'])",
        {"seconds": {"type": "integer", "minimum": 0, "maximum": MOST_SECONDS}, "label": {"type": "string"}},
    ),
}


def told(name: str) -> Offer:
    """Return a tool that says what a program in a box makes of its arguments."""
    program, properties = TOLD[name]

    async def carry(manager: SandboxManager, arguments: Arguments, on_output: OnOutput) -> types.CallToolResult:
        code = f"import json, sys; given = json.load(sys.stdin); {program}"
        result = await manager.execute(ExecutionRequest(code, stdin=json.dumps(dict(arguments))), on_output=on_output)
        assert result.success, result
        return types.CallToolResult(content=[types.TextContent(type="text", text=result.stdout.rstrip("\n"))])

    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    hints = hints_of_tool("code_run")
    return Offer(name, name, f"Fixture {name}", schema, None, hints, carry, lambda _: "code.run:python")


FIXTURES = (*map(fixture, BLOCKS), *map(told, TOLD))


class Extras:
    """Resources, prompts and completions of the suite, over the manager of whoever asks."""

    def __init__(self, door: McpDoor) -> None:
        self._door = door
        server = door.server
        server.add_request_handler("resources/list", types.PaginatedRequestParams, self.list_resources)
        server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, self.list_templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self.read)
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, self.list_prompts)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, self.prompt)
        server.add_request_handler("completion/complete", types.CompleteRequestParams, self.complete)
        server.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self.subscribe)
        server.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.set_level)
        self._watched: set[str] = set()
        asking.install(server)

    async def list_resources(self, _context: Any, _params: Any) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri="test://static-text", name="static-text", mime_type="text/plain"),
                types.Resource(uri="test://static-binary", name="static-binary", mime_type="image/png"),
            ]
        )

    async def list_templates(self, _context: Any, _params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template="test://template/{id}/data", name="template", mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(self, context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        manager = self._door.seat(context).manager
        kind, _, number = uri.removeprefix("test://").partition("/")
        if kind == "template":
            number = number.removesuffix("/data")
            code = f"import json; print(json.dumps({{'id': {number!r}, 'templateTest': True, 'data': 'for {number}'}}))"
            text = (await manager.execute(ExecutionRequest(code))).stdout
            return _contents(types.TextResourceContents(uri=uri, mime_type="application/json", text=text))
        if kind not in FILES:
            raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
        await manager.execute(ExecutionRequest("pass", files=FILES))
        content = (await manager.perform(FsRead(f"work/{kind}"))).content
        assert content is not None
        if kind == "static-text":
            return _contents(types.TextResourceContents(uri=uri, mime_type="text/plain", text=content.decode()))
        return _contents(types.BlobResourceContents(uri=uri, mime_type="image/png", blob=content.decode()))

    async def list_prompts(self, _context: Any, _params: Any) -> types.ListPromptsResult:
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(name="test_simple_prompt", description="no arguments"),
                types.Prompt(
                    name="test_prompt_with_arguments",
                    description="two arguments",
                    arguments=[types.PromptArgument(name=name, required=True) for name in ("arg1", "arg2")],
                ),
                types.Prompt(
                    name="test_prompt_with_embedded_resource",
                    description="a resource",
                    arguments=[types.PromptArgument(name="resourceUri", required=True)],
                ),
                types.Prompt(name="test_prompt_with_image", description="an image"),
                types.Prompt(name=asking.PROMPT, description="asks for its context"),
            ]
        )

    async def prompt(self, context: Any, params: types.GetPromptRequestParams) -> Any:
        given = params.arguments or {}
        if params.name == asking.PROMPT:
            found = await asking.answered(self._door.seat(context).manager, asking.PROMPT)
            return _messages(found["content"]) if isinstance(found, dict) else found
        said = {
            "test_simple_prompt": [{"type": "text", "text": "This is a simple prompt for testing."}],
            "test_prompt_with_arguments": [
                {
                    "type": "text",
                    "text": f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'",
                }
            ],
            "test_prompt_with_embedded_resource": [
                embedded(str(given.get("resourceUri")), "Embedded resource content for testing."),
                {"type": "text", "text": "Please process the embedded resource above."},
            ],
            "test_prompt_with_image": [IMAGE, {"type": "text", "text": "Please analyze the image above."}],
        }
        if params.name not in said:
            raise MCPError(types.INVALID_PARAMS, "there is no such prompt")
        request = ExecutionRequest(f"print({json.dumps(said[params.name])!r})")
        blocks = json.loads((await self._door.seat(context).manager.execute(request)).stdout)
        return _messages(blocks)

    async def subscribe(self, _context: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._watched.add(str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(self, _context: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._watched.discard(str(params.uri))
        return types.EmptyResult()

    async def set_level(self, _context: Any, _params: types.SetLevelRequestParams) -> types.EmptyResult:
        return types.EmptyResult()

    async def complete(self, _context: Any, _params: Any) -> types.CompleteResult:
        return types.CompleteResult(completion=types.Completion(values=["paris", "park"], total=2, has_more=False))


def _messages(blocks: list[Any]) -> types.GetPromptResult:
    return types.GetPromptResult.model_validate({"messages": [{"role": "user", "content": block} for block in blocks]})


def _contents(one: types.TextResourceContents | types.BlobResourceContents) -> types.ReadResourceResult:
    return types.ReadResourceResult(contents=[one])


class WithKey:
    """Gives every request the key that the suite cannot be told: the gate behind it is the real one."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"authorization", f"Bearer {self._key}".encode())]
        await self._app(scope, receive, send)


class Announcing(uvicorn.Server):
    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


def main(home: Path) -> None:
    key = new_key(home)
    house = open_house(home, usual_settings())
    door = McpDoor(house, offers=Offers((*BUILT_IN, *FIXTURES, *asking.OFFERS)))
    Extras(door)
    app = WithKey(behind_the_gate(house, door.route()), key)
    asyncio.run(
        served(house.manager, door, Announcing(uvicorn.Config(app, port=0, log_level="warning", access_log=False)))
    )


async def served(manager: SandboxManager, door: McpDoor, server: uvicorn.Server) -> None:
    async with manager, door.running():
        await manager.execute(ExecutionRequest("pass"))  # the suite gives some answers half a second
        await server.serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
