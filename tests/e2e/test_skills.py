"""Skills through every door: what the manifest allows is what the run may do, whoever asks."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.command_line import ringfence, said, told
from tests.unit.skills.example import put

from ringfence import Denied, InvalidRequest, SandboxManager, SkillsProvider, Status, ToolDenied, Unavailable
from ringfence.authority.caller import Caller
from ringfence.interfaces.http.app import build
from ringfence.interfaces.http.server import Server
from ringfence.service.callers import Access, Principal
from ringfence.service.exec_form import read_exec
from ringfence.service.exec_opening import open_execs
from ringfence.service.house import House, open_house
from ringfence.service.settings import ServiceSettings

pytestmark = pytest.mark.needs("native")

SEEING = "import json, os; print(json.dumps({'n': len(os.listdir('/workspace/work'))}))"
WRITING = """
import json, pathlib
for path in ('/workspace/work/out/a.txt', '/workspace/work/b.txt', '/workspace/artifacts/c.txt'):
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    pathlib.Path(path).write_text('x')
print(json.dumps({'n': 1}))
"""


def manager(home: Path, session_id: str | None = "p1", **more: Any) -> SandboxManager:
    return SandboxManager(session_id, home=home / "home", pool_size=1, **more)


# --- the shipped ones ---


async def test_the_shipped_skills_do_an_agents_work_in_one_project(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        made = await held.invoke(
            "shell.run", {"command": 'printf "one\\ntwo\\nneedle $1\\n" > a.txt; cat', "args": ["x"], "stdin": "hi"}
        )
        assert (made.success, made.outputs["stdout"], made.outputs["exit_code"]) == (True, "hi", 0)
        read = await held.invoke(
            "python.run", {"code": "import sys; print(open('a.txt').read(), sys.argv[1])", "args": ["y"]}
        )
        assert read.outputs["stdout"] == "one\ntwo\nneedle x\n y\n"
        found = await held.invoke("file.search", {"pattern": "NEED.E", "ignore_case": True})
        assert found.outputs == {
            "matches": [{"path": "a.txt", "line": 3, "column": 1, "text": "needle x"}],
            "files_searched": 1,
            "files_skipped": 0,
            "truncated": False,
        }
        failed = await held.invoke("shell.run", {"command": "echo oh >&2; exit 3"})
        assert (failed.success, failed.outputs["exit_code"], failed.outputs["stderr"]) == (False, 3, "oh\n")


async def test_a_search_is_bounded_and_says_so(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        await held.invoke(
            "shell.run",
            {"command": "seq 1 5000 > n.txt; echo 0 > z; ln -s /etc/passwd l; mkdir s; echo 7 > s/m.py"},
        )
        found = (await held.invoke("file.search", {"pattern": "7", "max_matches": 5})).outputs
        assert (len(found["matches"]), found["truncated"]) == (5, True)
        some = (await held.invoke("file.search", {"pattern": "7", "glob": "*.py", "path": "s"})).outputs
        assert [match["path"] for match in some["matches"]] == ["s/m.py"]
        plain = (await held.invoke("file.search", {"pattern": "(", "literal": True})).outputs
        assert (plain["matches"], plain["files_skipped"]) == ([], 1)
        for wrong in ({"pattern": "("}, {"pattern": "a", "path": "../.."}, {"pattern": "a", "path": "none"}):
            outcome = await held.invoke("file.search", wrong)
            assert (outcome.outputs, outcome.result.exit_code) == (None, 2)
            assert outcome.result.stderr.startswith(("pattern: ", "path: "))


# --- one's own ---


async def test_a_skill_of_ones_own_is_called_with_its_files_and_recorded_with_its_manifest(tmp_path: Path) -> None:
    files = {
        "main.py": b"import json, sys, sums\nprint(json.dumps({'n': sums.next(json.load(sys.stdin)['n'])}))",
        "sums.py": b"def next(n): return n + 1",
    }
    put(tmp_path / "skills", files)
    async with manager(tmp_path, skills=[tmp_path / "skills"]) as held:
        outcome = await held.invoke("add.one", {"n": 41})
        assert (outcome.success, outcome.outputs, outcome.reason) == (True, {"n": 42}, None)
    listed = told(tmp_path / "home", "evidence", "list", "--skill", "add.one")["execs"]
    assert [(row["exec_id"], row["skill_id"], row["tool_name"], row["project_id"]) for row in listed] == [
        (outcome.result.exec_id, "add.one", "add.one", "p1")
    ]
    shown = told(tmp_path / "home", "evidence", "show", outcome.result.exec_id)
    begun = shown["records"][0]["record"]
    assert {"policy", "manifest"} <= set(begun["documents"])
    assert begun["image"] == "ringfence/sandbox:latest"
    document = said(tmp_path / "home", "evidence", "document", begun["documents"]["manifest"])
    assert json.loads(document)["id"] == "add.one"
    assert ringfence(tmp_path / "home", "evidence", "replay", outcome.result.exec_id).returncode == 0


LANGUAGES = [
    (
        "bash",
        "main.sh",
        'source /workspace/inputs/skill/lib.sh; echo "{\\"n\\": $(( $(tr -dc 0-9) + one ))}"',
        "lib.sh",
        "one=1",
    ),
    pytest.param(
        *("node", "main.js"),
        "const {one} = require('/workspace/inputs/skill/lib.js');"
        "const {n} = JSON.parse(require('fs').readFileSync(0)); console.log(JSON.stringify({n: n + one}))",
        *("lib.js", "exports.one = 1"),
        marks=pytest.mark.needs("node"),
    ),
]


@pytest.mark.parametrize(("program", "file", "code", "beside", "content"), LANGUAGES, ids=("bash", "node"))
async def test_a_skill_may_be_written_in_another_language(
    tmp_path: Path, program: str, file: str, code: str, beside: str, content: str
) -> None:
    put(tmp_path / "skills", {file: code.encode(), beside: content.encode()}, runtime__entrypoint=[program, file])
    async with manager(tmp_path, skills=[tmp_path / "skills"]) as held:
        outcome = await held.invoke("add.one", {"n": 41})
    assert (outcome.outputs, outcome.result.stderr) == ({"n": 42}, "")


async def test_the_limits_of_the_manifest_hold_and_nobody_can_ask_for_more(tmp_path: Path) -> None:
    put(tmp_path / "skills", {"main.py": b"while True: pass"}, limits__timeout_ms=300, limits__memory_mb=64)
    async with manager(tmp_path, skills=[tmp_path / "skills"]) as held:
        outcome = await held.invoke("add.one", {"n": 1})
        assert (outcome.result.status, outcome.outputs, outcome.reason) == (Status.TIMED_OUT, None, "wall_timeout")
        with pytest.raises(InvalidRequest) as refused:
            await held.invoke("add.one", {"n": 1}, timeout=5)
        assert (refused.value.reason, refused.value.details["layer"]) == ("limit_exceeds_ceiling", "manifest")


async def test_a_skill_sees_and_changes_of_the_project_what_its_manifest_says(tmp_path: Path) -> None:
    shelf = tmp_path / "skills"
    put(shelf, {"main.py": SEEING.encode()}, id="sees.nothing")
    put(shelf, {"main.py": SEEING.encode()}, id="sees.work", permissions__fs__read=["work/**"])
    put(shelf, {"main.py": WRITING.encode()}, id="reads.only", permissions__fs__read=["work/**"])
    put(
        shelf,
        {"main.py": WRITING.encode()},
        id="writes.some",
        permissions__fs__write=["work/out/**", "artifacts/*.txt"],
    )
    put(shelf, {"main.py": WRITING.encode()}, id="writes.all", permissions__fs__write=["work/**"])
    work = tmp_path / "home/workspace/projects/p1/work"
    async with manager(tmp_path, skills=[shelf]) as held:
        await held.execute_shell("echo mine > mine.txt")
        assert (await held.invoke("sees.nothing", {"n": 1})).outputs == {"n": 0}
        assert (await held.invoke("sees.work", {"n": 1})).outputs == {"n": 1}
        reads = await held.invoke("reads.only", {"n": 1})
        assert (reads.success, reads.result.artifacts, reads.result.changes.kept) == (True, (), False)
        assert ("c.txt", "not_permitted") in reads.result.changes.uncollected
        assert sorted(path.name for path in work.iterdir()) == ["mine.txt"]
        some = await held.invoke("writes.some", {"n": 1})
        assert ([artifact.path for artifact in some.result.artifacts], some.result.changes.kept) == (["c.txt"], False)
        assert sorted(path.name for path in work.iterdir()) == ["mine.txt"]
        every = await held.invoke("writes.all", {"n": 1})
        assert (every.result.artifacts, every.result.changes.kept) == ((), True)
        assert sorted(path.name for path in work.iterdir()) == ["b.txt", "mine.txt", "out"]


async def test_outputs_that_are_not_valid_are_a_failure(tmp_path: Path) -> None:
    put(tmp_path / "skills", {"main.py": b'print(\'{"n": "one"}\')'})
    async with manager(tmp_path, skills=[tmp_path / "skills"]) as held:
        outcome = await held.invoke("add.one", {"n": 1})
    assert (outcome.success, outcome.outputs, outcome.reason) == (False, None, "output_invalid")
    assert outcome.result.error is not None
    assert "'one' is not of type 'integer'" in outcome.result.error
    exported = said(tmp_path / "home", "evidence", "export", "--format", "log")
    records = [json.loads(line) for line in exported.splitlines()]
    noted = [record for record in records if record["type"] == "skill.output_invalid"]
    assert [(record["exec_id"], record["skill_id"]) for record in noted] == [(outcome.result.exec_id, "add.one")]
    assert ringfence(tmp_path / "home", "evidence", "verify").returncode == 0
    assert told(tmp_path / "home", "evidence", "list")["execs"][0]["exec_id"] == outcome.result.exec_id


async def test_an_image_that_nothing_here_runs_is_refused_before_anything_runs(tmp_path: Path) -> None:
    put(tmp_path / "skills", runtime__image="node:24")
    async with manager(tmp_path, skills=[tmp_path / "skills"]) as held:
        with pytest.raises(Unavailable) as refused:
            await held.invoke("add.one", {"n": 1})
    assert refused.value.reason == "image_unavailable"


# --- the policy ---

POLICY = """
policies:
  tools:
    shell.run:
      denied_commands: ["curl"]
      max_execution_time: 5s
  agent_roles:
    coder:
      tools: [shell.run, skill.python.run]
    reader:
      tools: [file.search]
"""


async def test_a_role_has_the_skills_that_the_policy_lists_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    put(tmp_path / "skills")
    async with manager(
        tmp_path, policy_file=tmp_path / "policy.yaml", role="coder", skills=[tmp_path / "skills"]
    ) as held:
        assert [skill.id for skill in await held.skills()] == ["python.run", "shell.run"]
        assert (await held.invoke("python.run", {"code": "print(1)"})).outputs["stdout"] == "1\n"
        for denied, inputs in (("add.one", {"n": 1}), ("file.search", {"pattern": "x"})):
            with pytest.raises(ToolDenied) as refused:
                await held.invoke(denied, inputs)
            assert refused.value.reason == "tool_denied"
            assert "evidence_id" in refused.value.details
        # what a call brings is judged as the script it is
        with pytest.raises(ToolDenied):
            await held.invoke("shell.run", {"command": "curl example.com"})
        reader = held.acting_for(role="reader")
        assert [skill.id for skill in await reader.skills()] == ["file.search"]
        with pytest.raises(InvalidRequest):
            await reader.skill("shell.run")


async def test_a_policy_that_narrows_the_files_narrows_the_skill(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(
        "policies: {tools: {shell.run: {filesystem_access: none}, file.search: {allowed_paths: [work/a]}}}\n"
    )
    async with manager(tmp_path, policy_file=tmp_path / "policy.yaml") as held:
        await held.execute_shell("echo x > mine.txt")
        blind = await held.invoke("shell.run", {"command": "ls; touch new"})
        assert (blind.outputs["stdout"], (tmp_path / "home/workspace/projects/p1/work/new").exists()) == ("", False)
        with pytest.raises(Denied) as refused:
            await held.invoke("file.search", {"pattern": "x"})
        assert refused.value.reason == "path"


@pytest.mark.needs("biscuit")
async def test_a_grant_for_one_skill_is_good_for_that_one_alone(tmp_path: Path) -> None:
    said(tmp_path / "home", "key", "create")
    async with manager(tmp_path) as held:
        for tool in ("shell.run", "skill.shell.run"):
            words = ("--tool", tool, "--call", tool, "--limit", "timeout_ms=9000")
            token = said(tmp_path / "home", "grant", "issue", *words).strip()
            async with held.under(token, call_id=tool) as governed:
                assert (await governed.invoke("shell.run", {"command": "echo hi"})).outputs["stdout"] == "hi\n"
                with pytest.raises(Denied) as refused:
                    await governed.invoke("python.run", {"code": "print(1)"})
                assert refused.value.reason == "tool_mismatch"


# --- other doors ---


async def test_a_framework_lists_and_calls_them_as_tools(tmp_path: Path) -> None:
    async with manager(tmp_path) as held:
        provider = SkillsProvider(held)
        tools = await provider.list_tools()
        assert [tool["name"] for tool in tools] == [
            "skill.file.search",
            "skill.python.run",
            "skill.shell.run",
            "skill.web.fetch",
        ]
        assert tools[0]["annotations"] == {"readOnlyHint": True, "destructiveHint": False}
        assert (await provider.invoke("skill.shell.run", {"command": "echo hi"})).outputs["stdout"] == "hi\n"
        with pytest.raises(ToolDenied):
            await provider.invoke("shell.run", {"command": "echo hi"})


def test_the_command_makes_checks_lists_and_calls_a_skill(tmp_path: Path) -> None:
    home, shelf = tmp_path / "home", tmp_path / "skills"
    said(home, "skill", "new", "word.count", "--skills", str(shelf))
    assert said(home, "skill", "validate", str(shelf / "word.count")) == "word.count: valid\n"
    assert said(home, "skill", "list", "--skills", str(shelf)).split()[-3:] == ["word.count", "Count", "words"]
    called = said(home, "skill", "invoke", "word.count", "--skills", str(shelf), "--inputs", '{"text": "a b"}')
    assert json.loads(called) == {"words": 2}
    answer = told(home, "skill", "invoke", "word.count", "--skills", str(shelf), "--inputs", '{"text": "a b"}')
    assert (answer["skill_id"], answer["success"], answer["outputs"]) == ("word.count", True, {"words": 2})
    assert told(home, "skill", "show", "word.count", "--skills", str(shelf))["tool"] == "skill.word.count"
    manifest = shelf / "word.count" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"docker"', '"process"').replace('"none"', '"all"'))
    wrong = ringfence(home, "skill", "validate", str(shelf))
    assert wrong.returncode == 2
    assert [line.split(": ")[2] for line in wrong.stderr.splitlines()] == ["runtime.kind", "permissions.net.mode"]
    assert all("(fix: " in line for line in wrong.stderr.splitlines())
    refused = ringfence(home, "skill", "invoke", "word.count", "--skills", str(shelf))
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[House, str]]:
    """Serve a house on a port of its own."""
    house = open_house(tmp_path / "home", ServiceSettings(skills=str(tmp_path / "skills"), pool_size=1))
    house.execs = open_execs(house)
    await house.execs.start()
    listening = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(build(house), log_config=None, lifespan="off"))
    running = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await server.is_up.wait()
        yield house, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        await house.execs.close()
        await house.close()


async def asked(url: str, key: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Ask a service, and return the status and the JSON of its answer."""

    def ask() -> tuple[int, Any]:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"} | headers
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), sent)
        reply = connection.getresponse()
        answer = reply.status, json.loads(reply.read())
        connection.close()
        return answer

    return await asyncio.to_thread(ask)


async def test_a_service_lists_and_calls_them_for_whoever_has_a_key(tmp_path: Path) -> None:
    put(tmp_path / "skills")
    async with serving(tmp_path) as (house, url):
        _, key = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")
        listed = (await asked(url, key, "/skills"))[1]["skills"]
        assert [skill["id"] for skill in listed] == ["add.one", "file.search", "python.run", "shell.run", "web.fetch"]
        assert await asked(url, key, "/skills/add.one") == (200, listed[0])
        assert listed[0]["interface"]["inputs"]["required"] == ["n"]
        body = {"inputs": {"n": 1}, "project_id": "p", "task_ref": "T-1"}
        status, answer = await asked(url, key, "/skills/add.one/invoke", body)
        assert (status, answer["success"], answer["outputs"]) == (200, True, {"n": 2})
        rows = (await asked(url, key, "/sandbox/execs?task_id=T-1"))[1]["items"]
        assert [(row["exec_id"], row["skill_id"]) for row in rows] == [(answer["result"]["exec_id"], "add.one")]
        assert (await asked(url, "rfk_none", "/skills"))[0] == 401


async def test_a_service_refuses_a_call_that_is_none_and_tells_nothing_of_its_machine(tmp_path: Path) -> None:
    put(tmp_path / "skills")
    put(tmp_path / "skills", id="is.broken", runtime__kind="process")
    wrong: list[tuple[str, Any, int, str]] = [
        ("/skills/add.one/invoke", {"inputs": {"n": "x"}}, 422, "input_invalid"),
        ("/skills/add.one/invoke", {"inputs": {"n": 1}, "project_id": "../x"}, 422, "invalid_session_id"),
        ("/skills/is.broken/invoke", {"inputs": {}}, 422, "invalid_manifest"),
        ("/skills/no.such/invoke", {"inputs": {}}, 404, "not_found"),
        ("/skills/..%2fadd.one/invoke", {"inputs": {}}, 404, "not_found"),
        ("/skills/add.one/invoke", {"inputs": {"n": 1}, "more": 1}, 422, "invalid_request"),
        ("/skills/add.one/invoke", {"inputs": [1]}, 422, "invalid_request"),
    ]
    async with serving(tmp_path) as (house, url):
        _, key = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")
        for path, body, status, reason in wrong:
            answered, problem = await asked(url, key, path, body)
            assert (answered, problem["reason"]) == (status, reason), path
            assert str(tmp_path) not in json.dumps(problem)
        unknown = [await asked(url, key, f"/skills/{name}") for name in ("no.such", "a..b", "is.broken", "..%2fa")]
        assert [status for status, _ in unknown] == [404, 404, 404, 404]
        assert unknown[0] == unknown[1] == unknown[2]


async def test_an_execution_on_behalf_of_a_skill_is_held_to_its_manifest(tmp_path: Path) -> None:
    put(tmp_path / "skills", limits__timeout_ms=9000)
    async with serving(tmp_path) as (house, url):
        _, key = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")

        async def run(kind: str, code: str, **more: Any) -> tuple[int, Any]:
            body = {"project_id": "p", "skill_id": "add.one", "exec": {"kind": kind, "code": code}, **more}
            return await asked(url, key, "/sandbox/execs", body)

        status, ran = await run("python", "open('a.txt', 'w').write('x'); print(1)")
        assert (status, ran["stdout"]) == (201, "1\n")
        # the manifest names no file of the project, so there was none to see and none is kept
        assert (await asked(url, key, f"/sandbox/execs/{ran['exec_id']}"))[1]["skill_id"] == "add.one"
        assert not list((tmp_path / "home").rglob("work/a.txt"))
        status, refused = await run("shell", "echo not its language")
        assert (status, refused["reason"]) == (403, "manifest_mismatch")
        status, refused = await run("python", "1", policy_overrides={"timeout_ms": 20_000})
        assert (status, refused["reason"]) == (403, "limit_exceeds_ceiling")
        status, refused = await run("python", "1", skill_id="no.such")
        assert (status, refused["reason"]) == (404, "not_found")


async def test_a_skill_that_is_gone_when_its_execution_comes_to_run_is_not_run_without_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (house, _):
        form = read_exec({"ephemeral": True, "skill_id": "add.one", "exec": {"kind": "python", "code": "print('RAN')"}})
        key, _ = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")
        with pytest.raises(InvalidRequest) as refused:  # as after a restart, with what was promised before it
            await house.execs.submit(Principal(Caller("acme"), Access.AGENT, key.key_id), form)
    assert refused.value.reason == "not_found"


async def test_whoever_leaves_a_service_takes_his_call_with_him(tmp_path: Path) -> None:
    async with serving(tmp_path) as (house, url):
        _, key = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")
        async with SandboxManager("p1", url=url, api_key=key) as held:
            calling = asyncio.ensure_future(held.invoke("shell.run", {"command": "sleep 50"}))
            while not (await asked(url, key, "/sandbox/execs"))[1]["items"]:
                assert not calling.done()
            calling.cancel()
            await asyncio.wait({calling})
        while (ended := (await asked(url, key, "/sandbox/execs"))[1]["items"][0])["status"] == "running":
            pass
        assert (ended["status"], ended["skill_id"]) == ("cancelled", "shell.run")


async def test_a_manager_with_an_address_has_the_skills_of_the_service(tmp_path: Path) -> None:
    put(tmp_path / "skills")
    async with serving(tmp_path) as (house, url):
        _, key = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")
        here = [skill.to_dict() for skill in await house.manager.skills()]
        async with SandboxManager("p1", url=url, api_key=key) as held:
            assert [skill.to_dict() for skill in await held.skills()] == here
            assert (await held.skill("add.one")).to_dict() == here[0]
            with pytest.raises(InvalidRequest) as unknown:
                await held.skill("no.such")
            assert unknown.value.reason == "not_found"
            outcome = await held.invoke("add.one", {"n": 1}, timeout=10)
            assert (outcome.success, outcome.outputs, outcome.skill_id) == (True, {"n": 2}, "add.one")
            assert outcome.result.sandbox_id.startswith("rf-")
            with pytest.raises(InvalidRequest) as refused:
                await held.invoke("add.one", {"n": "x"})
            assert refused.value.reason == "input_invalid"
            assert (await SkillsProvider(held).list_tools())[0]["name"] == "skill.add.one"


@pytest.mark.needs("biscuit")
async def test_a_grant_holds_over_the_service_too(tmp_path: Path) -> None:
    said(tmp_path / "home", "key", "create")
    async with serving(tmp_path) as (house, url):
        made, key = await asyncio.to_thread(house.keys.create, Access.AGENT, tenant="acme")
        words = ("--tool", "shell.run", "--call", "c1", "--tenant", "acme", "--subject", made.key_id)
        token = said(tmp_path / "home", "grant", "issue", *words).strip()
        async with SandboxManager("p1", url=url, api_key=key) as held, held.under(token, call_id="c1") as governed:
            with pytest.raises(Denied) as refused:
                await governed.invoke("python.run", {"code": "print(1)"})
            assert refused.value.reason == "tool_mismatch"
            assert (await governed.invoke("shell.run", {"command": "echo hi"})).outputs["stdout"] == "hi\n"
        status, problem = await asked(url, key, "/skills", **{"X-Ringfence-Grant": token, "X-Ringfence-Call": "c1"})
        assert (status, problem["reason"]) == (422, "not_in_this_version")
