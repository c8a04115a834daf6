"""The protocol's own client, over both transports and in both of its eras, against the command as it is shipped."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.command_line import ringfence, told
from tests.mcp_servers import (
    VERSION_OF,
    Era,
    HttpServer,
    eventually,
    listening,
    over_http,
    over_stdio,
    running,
    structured,
    text_of,
)

pytestmark = pytest.mark.needs("native")

ERAS: tuple[Era, ...] = ("auto", "legacy")


class Server:
    """One server, over whichever transport, and a project for one test."""

    def __init__(self, home: Path, http: HttpServer | None, project: str) -> None:
        self.home, self.http, self.project = home, http, project

    @asynccontextmanager
    async def client(self, era: Era = "auto") -> AsyncIterator[Client]:
        if self.http is None:
            opened = over_stdio(self.home, "--project", self.project, era=era)
        else:
            opened = over_http(self.http, era=era, query=f"?project={self.project}")
        async with opened as client:
            yield client


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    with listening(home) as http:
        yield Server(home, http, "shared")


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, listener: Server, tmp_path: Path) -> Server:
    if request.param == "stdio":
        return Server(tmp_path, None, "mine")
    return Server(listener.home, listener.http, f"p{tmp_path.name[-40:]}")


# --- what is offered ---


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_of_either_era_runs_code_and_gets_both_kinds_of_content(server: Server, era: Era) -> None:
    async with server.client(era) as client:
        assert client.protocol_version == VERSION_OF[era]
        result = await client.call_tool("run_code", {"code": "print(1 + 1)"})
    assert not result.is_error
    assert text_of(result) == "2\n[succeeded, exit code 0]"
    fields = structured(result)
    assert (fields["status"], fields["exit_code"], fields["stdout"], fields["stdout_truncated"]) == (
        "succeeded", 0, "2\n", False,
    )  # fmt: skip
    assert fields["evidence_id"]


async def test_every_tool_has_both_schemas_and_all_four_hints(server: Server) -> None:
    async with server.client() as client:
        tools = (await client.list_tools()).tools
    for tool in tools:
        assert tool.input_schema["additionalProperties"] is False, tool.name
        assert tool.output_schema is not None
        assert tool.annotations is not None
        hints = tool.annotations.model_dump()
        assert [name for name, hint in hints.items() if name.endswith("_hint") and hint is None] == []
    read_only = {tool.name for tool in tools if tool.annotations and tool.annotations.read_only_hint}
    destructive = {tool.name for tool in tools if tool.annotations and tool.annotations.destructive_hint}
    assert {"read_file", "list_files"} <= read_only
    assert {"run_code", "run_shell", "write_file"} <= destructive
    assert not read_only & destructive


async def test_files_go_from_one_tool_to_the_next(server: Server) -> None:
    binary = base64.b64encode(bytes(range(256))).decode()
    async with server.client() as client:
        wrote = structured(await client.call_tool("write_file", {"path": "work/a.txt", "content": "grün\n"}))
        await client.call_tool("write_file", {"path": "work/b.bin", "content_base64": binary})
        command = "cat a.txt; wc -c < b.bin; echo x > c; echo y > /workspace/artifacts/d"
        ran = structured(await client.call_tool("run_shell", {"command": command}))
        listed = structured(await client.call_tool("list_files", {"path": "work"}))
        text = structured(await client.call_tool("read_file", {"path": "work/a.txt"}))
        data = structured(await client.call_tool("read_file", {"path": "work/b.bin"}))
        (left,) = ran["artifacts"]
        artifact = structured(await client.call_tool("read_file", {"path": left["path"]}))
    assert (wrote["created"], wrote["bytes"]) == (True, 6)
    assert ran["stdout"] == "grün\n256\n"
    assert ran["files_written"] == ["work/c"]
    assert (left["size"], artifact["content"]) == (2, "y\n")
    assert [entry["name"] for entry in listed["entries"]] == ["a.txt", "b.bin", "c"]
    assert (text["content"], text["content_base64"], text["next_offset"]) == ("grün\n", None, None)
    assert (data["content"], data["content_base64"]) == (None, binary)


async def test_a_file_is_read_in_parts_that_cut_no_character(server: Server) -> None:
    async with server.client() as client:
        await client.call_tool("write_file", {"path": "work/a", "content": "äöü"})
        found = ""
        offset: int | None = 0
        while offset is not None:
            part = structured(await client.call_tool("read_file", {"path": "work/a", "offset": offset, "length": 3}))
            found += part["content"]
            offset = part["next_offset"]
    assert found == "äöü"


async def test_a_program_that_fails_is_a_result_and_no_error_of_the_tool(server: Server) -> None:
    async with server.client() as client:
        result = await client.call_tool("run_code", {"code": "import sys; sys.exit(7)"})
    assert not result.is_error
    assert structured(result)["exit_code"] == 7
    assert text_of(result) == "[failed, exit code 7]"


async def test_a_long_output_comes_with_its_head_its_tail_and_a_flag(server: Server) -> None:
    async with server.client() as client:
        result = await client.call_tool("run_code", {"code": "print('first'); print('x' * 300_000); print('last')"})
    fields = structured(result)
    assert fields["stdout_truncated"]
    assert fields["stdout_bytes"] == 300_012
    assert fields["stdout"].startswith("first\nxxx")
    assert fields["stdout"].endswith("xxx\nlast\n")
    assert "characters left out" in fields["stdout"]
    assert len(fields["stdout"]) < 25_000
    assert text_of(result).endswith("stdout truncated]")


# --- refusals ---


async def test_a_denial_is_a_tool_error_that_says_what_would_be_needed(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("policies: {tools: {code_run: {supported_languages: [javascript]}}}\n")
    async with over_stdio(tmp_path, "--policy", str(policy)) as client:
        result = await client.call_tool("run_code", {"code": "print(1)"})
    assert result.is_error
    error = structured(result)["error"]
    assert (error["code"], error["reason"]) == ("POLICY.DENY_TOOL", "manifest_mismatch")
    assert error["needs"] == "code.run:python"
    assert text_of(result).startswith("POLICY.DENY_TOOL manifest_mismatch: ")
    assert "needs a policy or a grant that allows code.run:python" in text_of(result)
    # the refusal is in the evidence like that of any other door
    assert outcomes(tmp_path) == ["denied"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"allow_domains": ["example.org"]}, "no way to example.org"),
        ({"secrets": ["TOKEN=env"]}, "lends no secret TOKEN"),
    ],
)
async def test_hosts_and_secrets_that_no_policy_grants_are_refused(
    server: Server, asked: dict[str, list[str]], said: str
) -> None:
    async with server.client() as client:
        answer = await client.call_tool("run_code", {"code": "print('ran')", **asked})
        assert answer.is_error
        assert said in text_of(answer)


async def test_what_leads_out_of_the_workspace_is_a_tool_error(server: Server) -> None:
    async with server.client() as client:
        result = await client.call_tool("read_file", {"path": "../../etc/passwd"})
    assert result.is_error
    error = structured(result)["error"]
    assert (error["code"], error["needs"]) == ("SANDBOX.CAPABILITY_BLOCKED", None)
    assert text_of(result).endswith("Fix: name a file below work/, inputs/ or artifacts/")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"code": 1},
        {"code": ""},
        {"code": "1", "nope": 1},
        {"code": "1", "language": "cobol"},
        {"code": "1", "timeout": 0},
        {"code": "1", "timeout": True},
        {"code": "1", "timeout": 1e99},
        {"code": "1", "args": "not a list"},
        {"code": "1", "env": {"A": 1}},
        {"code": "1", "files": {"x" * 2000: "1"}},
        {"code": "x" * ((1 << 20) + 1)},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
async def test_arguments_that_the_schema_does_not_know_are_refused_in_one_line(
    listener: Server, arguments: dict[str, object]
) -> None:
    async with listener.client() as client:
        result = await client.call_tool("run_code", arguments)
    assert result.is_error
    error = structured(result)["error"]
    assert error["code"] == "SCHEMA.VALIDATION_FAILED"
    assert len(text_of(result).splitlines()) == 1
    assert len(text_of(result)) < 500


async def test_an_unknown_tool_is_an_error_of_the_protocol(server: Server) -> None:
    async with server.client() as client:
        with pytest.raises(MCPError, match="there is no tool 'rm_rf'"):
            await client.call_tool("rm_rf", {})


# --- long runs ---


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_asks_for_progress_hears_of_output_and_of_time(server: Server, era: Era) -> None:
    heard: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    code = "import time\nfor i in range(8): print(i, flush=True); time.sleep(0.25)"
    async with server.client(era) as client:
        await client.call_tool("run_code", {"code": code}, progress_callback=on_progress)
    numbers = [progress for progress, _ in heard]
    assert len(numbers) >= 2
    assert numbers == sorted(set(numbers))
    assert "chunks of output" in str(heard[-1][1])


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_kills_its_run_and_leaves_nothing(server: Server, era: Era) -> None:
    marker = f"rf-mcp-cancel-{id(server)}"
    async with server.client(era) as client:
        call = asyncio.ensure_future(
            client.call_tool("run_shell", {"command": f"exec -a {marker} sleep 1000 & exec -a {marker} sleep 1000"})
        )
        await eventually(lambda: len(running(marker)) == 2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await eventually(lambda: running(marker) == [])
        # the server lives, and the end of the run is on record
        assert structured(await client.call_tool("run_code", {"code": "print(3)"}))["stdout"] == "3\n"
        await eventually(lambda: "cancelled" in outcomes(server.home))


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_goes_takes_its_runs_with_it(tmp_path: Path, era: Era) -> None:
    marker = f"rf-mcp-gone-{tmp_path.name}"
    async with over_stdio(tmp_path, era=era) as client:
        call = asyncio.ensure_future(client.call_tool("run_shell", {"command": f"exec -a {marker} sleep 1000"}))
        await eventually(lambda: len(running(marker)) == 1)
    await asyncio.gather(call, return_exceptions=True)
    await eventually(lambda: running(marker) == [])
    assert outcomes(tmp_path) == ["cancelled"]


def outcomes(home: Path) -> list[str]:
    """Return how what is in the evidence ended, latest first."""
    return [each["outcome"] for each in told(home, "evidence", "list")["execs"]]


# --- processes ---


async def test_a_process_is_started_read_fed_and_killed(server: Server) -> None:
    code = "import sys\nfor line in sys.stdin: print('got', line.strip(), flush=True)\nprint('end'); sys.exit(4)"
    async with server.client() as client:
        started = structured(await client.call_tool("start_process", {"code": code, "language": "python"}))
        process = {"process_id": started["process_id"]}
        sent = structured(await client.call_tool("send_process", {**process, "data": "grün\n"}))
        said = structured(await client.call_tool("read_process", {**process, "wait_seconds": 30}))
        assert (sent["sent_bytes"], said["stdout"], said["state"]) == (6, "got grün\n", "running")
        await client.call_tool("send_process", {**process, "end": True})
        offset = said["stdout_next_offset"]
        while said["state"] == "running":
            said = structured(
                await client.call_tool("read_process", {**process, "stdout_offset": offset, "wait_seconds": 30})
            )
        assert (said["stdout"], said["exit_code"], said["stdout_lost_bytes"]) == ("end\n", 4, 0)
        assert structured(await client.call_tool("kill_process", process))["state"] == "failed"


async def test_a_killed_process_leaves_nothing_and_so_does_a_client_that_goes(tmp_path: Path) -> None:
    marker = f"rf-mcp-process-{tmp_path.name}"
    async with over_stdio(tmp_path) as client:
        for _ in range(2):
            started = structured(await client.call_tool("start_process", {"command": f"exec -a {marker} sleep 1000"}))
        await eventually(lambda: len(running(marker)) == 2)
        killed = structured(await client.call_tool("kill_process", {"process_id": started["process_id"]}))
        assert killed["state"] == "cancelled"
        assert len(running(marker)) == 1
    await eventually(lambda: running(marker) == [])


async def test_a_process_that_is_not_there_is_a_tool_error(server: Server) -> None:
    async with server.client() as client:
        for tool in ("read_process", "send_process", "kill_process"):
            result = await client.call_tool(tool, {"process_id": "proc_../../1"})
            assert result.is_error
            assert structured(result)["error"]["reason"] == "not_found"


# --- skills ---

MANIFEST = {
    "schema_version": 1,
    "id": "text.shout",
    "name": "Shout",
    "description": "Says it louder.",
    "side_effect": ["none"],
    "interface": {
        "inputs": {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": False,
        },
        "outputs": {"type": "object", "properties": {"louder": {"type": "string"}}, "required": ["louder"]},
    },
    "runtime": {"kind": "docker", "image": "ringfence/sandbox:latest", "entrypoint": ["python", "main.py"]},
    "permissions": {"fs": {"read": [], "write": []}, "net": {"mode": "none"}},
    "limits": {"timeout_ms": 5000, "memory_mb": 128},
}
MAIN = "import json, sys\nasked = json.load(sys.stdin)\nprint(json.dumps({'louder': asked['text'].upper()}))\n"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    skill = tmp_path / "shelf" / "text.shout"
    skill.mkdir(parents=True)
    (skill / "manifest.json").write_text(json.dumps(MANIFEST))
    (skill / "main.py").write_text(MAIN)
    return skill.parent


async def test_a_skill_is_a_tool_with_the_schemas_and_hints_of_its_manifest(tmp_path: Path, shelf: Path) -> None:
    async with over_stdio(tmp_path, "--skills", str(shelf)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        tool = tools["skill.text.shout"]
        assert tool.input_schema == MANIFEST["interface"]["inputs"]  # type: ignore[index]
        assert tool.output_schema == MANIFEST["interface"]["outputs"]  # type: ignore[index]
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.open_world_hint) == (True, False)
        assert {"skill.shell.run", "skill.python.run", "skill.file.search"} <= tools.keys()
        result = await client.call_tool("skill.text.shout", {"text": "hey"})
        refused = await client.call_tool("skill.text.shout", {"text": 1})
    assert structured(result) == {"louder": "HEY"}
    assert text_of(result) == '{"louder": "HEY"}'
    assert result.meta is not None
    assert result.meta["ringfence/run"]["status"] == "succeeded"
    assert refused.is_error
    assert refused.structured_content is None
    assert refused.meta is not None
    assert refused.meta["ringfence/error"]["code"] == "SCHEMA.VALIDATION_FAILED"


async def test_a_skill_whose_outputs_are_not_what_it_says_is_a_tool_error(tmp_path: Path, shelf: Path) -> None:
    (shelf / "text.shout" / "main.py").write_text("print('{}')\n")
    async with over_stdio(tmp_path, "--skills", str(shelf)) as client:
        result = await client.call_tool("skill.text.shout", {"text": "hey"})
    assert result.is_error
    assert "output_invalid" in text_of(result)


# --- whose it is ---


async def test_a_project_of_the_url_has_files_of_its_own(tmp_path: Path) -> None:
    with listening(tmp_path) as http:
        async with over_http(http, query="?project=one") as client:
            await client.call_tool("write_file", {"path": "work/mine", "content": "1"})
        async with over_http(http, query="?project=two") as client:
            listed = structured(await client.call_tool("list_files", {}))
    assert listed["entries"] == []


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        done: subprocess.CompletedProcess[str] = ringfence(tmp_path, "mcp", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    assert "ringfence serve" in refused("--transport", "http", "--host", "0.0.0.0")
    assert "--transport http" in refused("--port", "1")
    assert "/mcp?project=ID" in refused("--transport", "http", "--project", "p")
    assert "--nonsense" in refused("--nonsense")
