"""AIO's own client, unchanged, against our surface: files, code, notebooks, tools and skills, in both flavours."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests import aio_client
from tests.aio_client import Client, Raised
from tests.http_service import Service, serving

pytestmark = [pytest.mark.needs("native", "aio_sdk"), pytest.mark.once]
WORK = "/workspace/work"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("aio-files"), "--aio") as running:
        yield running


@pytest.fixture(scope="module", params=["sync", "async"])
def client(service: Service, request: pytest.FixtureRequest) -> Iterator[Client]:
    headers = {"Authorization": f"Bearer {service.key}", "X-Ringfence-Project": request.param}
    with aio_client.connected(f"http://127.0.0.1:{service.port}", flavour=request.param, **headers) as connected:
        yield connected


def test_a_file_is_written_added_to_and_read_by_lines(client: Client) -> None:
    written = client("file.write_file", file=f"{WORK}/deep/a.txt", content="one\ntwo\n")["data"]
    assert (written["file"], written["bytes_written"]) == (f"{WORK}/deep/a.txt", 8)
    client("file.write_file", file="deep/a.txt", content="three", append=True, trailing_newline=True)
    read = client("file.read_file", file=f"{WORK}/deep/a.txt", start_line=1, end_line=3)["data"]
    assert read["content"] == "two\nthree\n"


def test_bytes_go_in_as_base64_and_raw_and_come_out_as_a_stream(client: Client) -> None:
    client("file.write_file", file="b.bin", content="AAEC/w==", encoding="base64")
    client("file.write_file", file="b.bin", content="\xfe", encoding="raw", append=True)
    assert client("file.download_file", path=f"{WORK}/b.bin") == b"\0\1\2\xff\xfe"
    unreadable = client("file.read_file", file="b.bin")
    assert (unreadable["success"], unreadable["data"]["error_type"]) == (False, "decode_error")


def test_a_file_longer_than_one_operation_reads_is_downloaded_whole(client: Client) -> None:
    assert client("bash.exec", command="head -c 20000000 /dev/urandom > big; sha256sum big > sum")["success"]
    content = client("file.download_file", path="big")
    assert len(content) == 20_000_000
    assert client("file.read_file", file="sum")["data"]["content"].split()[0] == hashlib.sha256(content).hexdigest()
    refused = client("file.read_file", file="big")
    assert (refused["success"], refused["data"]["errno_name"]) == (False, "EFBIG")
    assert client("bash.exec", command="rm big sum")["success"]


def test_a_form_uploads_a_file(client: Client) -> None:
    content = b"\r\n--not the end\r\n\0"
    told = client("file.upload_file", file=("given.bin", content), path=f"{WORK}/up/given.bin")["data"]
    assert (told["file_path"], told["file_size"], told["success"]) == (f"{WORK}/up/given.bin", len(content), True)
    assert client("file.download_file", path="up/given.bin") == content
    named = client("file.upload_file", file=("../../named.bin", b"x"))["data"]
    assert named["file_path"] == f"{WORK}/named.bin"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("file.read_file", {"file": f"{WORK}/nothing"}),
        ("file.replace_in_file", {"file": f"{WORK}/nothing", "old_str": "a", "new_str": "b"}),
        ("file.search_in_file", {"file": f"{WORK}/nothing", "regex": "a"}),
        ("file.list_path", {"path": f"{WORK}/nothing"}),
        ("file.list_path", {"path": f"{WORK}/nothing", "recursive": True}),
        ("file.find_files", {"path": f"{WORK}/nothing", "glob": "*"}),
        ("file.grep_files", {"path": f"{WORK}/nothing", "pattern": "a"}),
        ("file.glob_files", {"path": f"{WORK}/nothing", "pattern": "*"}),
        ("file.str_replace_editor", {"command": "view", "path": f"{WORK}/nothing"}),
    ],
)
def test_what_is_missing_is_told_in_the_documented_form_and_read_by_the_client(
    client: Client, call: str, arguments: dict[str, object]
) -> None:
    told = client(call, **arguments)
    assert told["success"] is False
    data = told["data"]
    assert {"error_type": "not_found", "errno": 2, "errno_name": "ENOENT"}.items() <= data.items()
    assert data["path"] == f"{WORK}/nothing"


def test_a_download_of_nothing_is_told_by_the_status(client: Client) -> None:
    with pytest.raises(Raised) as raised:
        client("file.download_file", path=f"{WORK}/nothing")
    assert (raised.value.kind, raised.value.status) == ("ApiError", 404)
    assert raised.value.body["success"] is False


@pytest.fixture(scope="module")
def tree(client: Client) -> str:
    made = "mkdir -p tree/src/inner tree/.hid && cd tree && printf 'Alpha\\nbeta\\nalpha beta\\n' > src/a.py && "
    more = "printf 'alpha' > src/inner/b.txt && touch .hid/c.py json.py && printf 'raise SystemExit' > ../json.py"
    assert client("bash.exec", command=made + more)["data"]["exit_code"] == 0
    return f"{WORK}/tree"


def test_directories_are_listed_flat_and_deep(client: Client, tree: str) -> None:
    flat = client("file.list_path", path=tree)["data"]
    assert [(one["name"], one["is_directory"]) for one in flat["files"]] == [("json.py", False), ("src", True)]
    assert (flat["total_count"], flat["directory_count"], flat["file_count"]) == (2, 1, 1)
    hidden = client("file.list_path", path=tree, show_hidden=True, sort_by="name", sort_desc=True)["data"]
    assert [one["name"] for one in hidden["files"]] == ["src", "json.py", ".hid"]
    deep = client("file.list_path", path=tree, recursive=True)["data"]["files"]
    assert [one["path"].removeprefix(tree) for one in deep] == [
        "/json.py", "/src", "/src/a.py", "/src/inner", "/src/inner/b.txt",
    ]  # fmt: skip
    assert {one["name"]: one["size"] for one in deep}["b.txt"] == 5
    shallow = client("file.list_path", path=tree, recursive=True, max_depth=2, file_types=["py"])["data"]["files"]
    assert [one["name"] for one in shallow] == ["json.py", "src", "a.py", "inner"]


def test_files_are_found_by_name_path_and_content(client: Client, tree: str) -> None:
    assert client("file.find_files", path=tree, glob="*.txt")["data"]["files"] == [f"{tree}/src/inner/b.txt"]
    globbed = client("file.glob_files", path=tree, pattern="**/*.py", exclude=["src/**"])["data"]
    assert [one["path"] for one in globbed["files"]] == [f"{tree}/json.py"]
    found = client("file.search_in_file", file=f"{tree}/src/a.py", regex="^al|b.ta$")["data"]
    assert (found["matches"], found["line_numbers"]) == (["beta", "alpha beta"], [2, 3])
    asked: dict[str, Any] = {"path": tree, "pattern": "ALPHA", "case_insensitive": True, "context_before": 1}
    grepped = client("file.grep_files", include=["*.py"], **asked)["data"]
    assert [(one["line_number"], one["context_before"]) for one in grepped["matches"]] == [(1, []), (3, ["beta"])]
    assert (grepped["match_count"], grepped["files_matched"], grepped["truncated"]) == (2, 1, False)
    one = client("file.grep_files", offset=1, max_results=1, type="py", **asked)["data"]
    assert ([match["line_number"] for match in one["matches"]], one["truncated"]) == ([3], False)
    bad = client("file.grep_files", path=tree, pattern="(")
    assert (bad["success"], bad["data"]["reason"]) == (False, "invalid_glob")


def test_a_text_is_replaced_and_edited(client: Client) -> None:
    client("file.write_file", file="edit.txt", content="a\nb\na\n")
    assert client("file.replace_in_file", file="edit.txt", old_str="b", new_str="B")["data"]["replaced_count"] == 1
    edit: dict[str, Any] = {"path": f"{WORK}/edit.txt"}
    twice = client("file.str_replace_editor", command="str_replace", old_str="a", new_str="A", **edit)
    assert twice["success"] is False
    last = client(
        "file.str_replace_editor", command="str_replace", old_str="a", new_str="A", replace_mode="LAST", **edit
    )
    assert (last["data"]["old_content"], last["data"]["new_content"]) == ("a\nB\na\n", "a\nB\nA\n")
    client("file.str_replace_editor", command="insert", insert_line=1, new_str="between", **edit)
    seen = client("file.str_replace_editor", command="view", view_range=[2, 3], **edit)["data"]["output"]
    assert seen == "     2\tbetween\n     3\tB"
    made = client("file.str_replace_editor", command="create", file_text="new", path="made.txt")["data"]
    assert (made["prev_exist"], client("file.read_file", file="made.txt")["data"]["content"]) == (False, "new")
    assert "edit.txt" in client("file.str_replace_editor", command="view", path=WORK)["data"]["output"]
    assert client("file.str_replace_editor", command="undo_edit", **edit)["success"] is False


def test_code_is_run_and_its_state_kept_where_that_is_asked_for(client: Client) -> None:
    run = client("code.execute_code", language="python", code="print(6 * 7)")["data"]
    assert (run["status"], run["stdout"], run["exit_code"], run["session_id"]) == ("ok", "42\n", 0, None)
    failed = client("code.execute_code", language="python", code="1 / 0")
    assert (failed["success"], failed["data"]["status"], failed["data"]["exit_code"]) == (True, "error", 1)
    assert failed["data"]["outputs"][-1]["ename"] == "ZeroDivisionError"
    slow = client("code.execute_code", language="python", code="while True: pass", timeout=1)["data"]
    assert slow["status"] == "timeout"
    kept = client("code.execute_code", language="python", code="x = 5", stateful=True)["data"]["session_id"]
    again = client("code.execute_code", language="python", code="print(x)", stateful=True, session_id=kept)["data"]
    assert again["stdout"] == "5\n"
    assert {one["language"] for one in client("code.get_info")["data"]["languages"]} == {"python", "javascript"}


@pytest.mark.needs("node")
def test_javascript_is_run_and_keeps_no_state(client: Client) -> None:
    run = client("code.execute_code", language="javascript", code="console.log([1, 2].length)")["data"]
    assert run["stdout"] == "2\n"
    refused = client("code.execute_code", language="javascript", code="1", stateful=True)
    assert (refused["success"], refused["data"]["error_type"]) == (False, "not_available")
    code = "const fs = require('fs'); console.log(fs.readFileSync(0) + fs.readFileSync('given.txt')); process.exit(4)"
    node = client("nodejs.execute_code", code=code, stdin="in, ", files={"given.txt": "file"})["data"]
    assert (node["stdout"], node["exit_code"], node["status"]) == ("in, file\n", 4, "error")
    assert client("nodejs.execute_code", code="1", session_id="s")["success"] is False


def test_cells_share_the_variables_of_their_session(client: Client) -> None:
    once = client("jupyter.execute_code", code="open('cell.txt', 'w').write('here'); print('said'); 40 + 2")["data"]
    assert [one["output_type"] for one in once["outputs"]] == ["stream", "execute_result"]
    assert (once["outputs"][1]["data"], once["session_id"]) == ({"text/plain": "42"}, None)
    assert client("file.read_file", file="cell.txt")["data"]["content"] == "here"
    made = client("jupyter.create_session", session_id="nb", kernel_name="python3")["data"]
    assert (made["session_id"], made["kernel_name"]) == ("nb", "python3")
    client("jupyter.execute_code", code="y = 3", session_id="nb")
    cell = client("jupyter.execute_code", code="y", session_id="nb")["data"]
    assert (cell["execution_count"], cell["outputs"][0]["data"]) == (2, {"text/plain": "3"})
    wrong = client("jupyter.execute_code", code="unknown", session_id="nb")["data"]
    assert (wrong["status"], wrong["outputs"][-1]["ename"]) == ("error", "NameError")
    slow = client("jupyter.execute_code", code="import time; time.sleep(60)", session_id="nb", timeout=1)["data"]
    assert slow["status"] == "timeout"
    assert client("jupyter.execute_code", code="y + 1", session_id="nb")["data"]["status"] == "ok"
    assert "nb" in client("jupyter.list_sessions")["data"]["sessions"]
    assert client("jupyter.get_info")["data"]["default_kernel"] == "python3"
    assert client("jupyter.delete_session", "nb")["success"]
    assert client("jupyter.delete_session", "nb")["success"] is False
    assert client("jupyter.delete_sessions")["success"]
    other = client("jupyter.execute_code", code="1", kernel_name="julia")
    assert (other["success"], other["data"]["reason"]) == (False, "unknown_language")


def test_a_session_whose_interpreter_is_gone_says_so_once_and_begins_again(client: Client) -> None:
    client("jupyter.execute_code", code="z = 1", session_id="gone")
    client("jupyter.execute_code", code="import os; os._exit(3)", session_id="gone")
    told = client("jupyter.execute_code", code="z", session_id="gone")
    assert (told["success"], told["data"]["error_type"]) == (False, "not_running")
    assert client("jupyter.execute_code", code="1", session_id="gone")["success"]
    client("jupyter.delete_sessions")


def test_tools_and_skills_are_listed_and_called(client: Client) -> None:
    assert client("mcp.list_mcp_servers")["data"] == ["ringfence"]
    tools = client("mcp.list_mcp_tools", "ringfence")["data"]["tools"]
    assert "run_code" in {tool["name"] for tool in tools}
    called = client("mcp.execute_mcp_tool", "ringfence", "run_code", request={"language": "python", "code": "print(3)"})
    assert called["data"]["content"][0]["text"].startswith("3\n")
    assert client("mcp.execute_mcp_tool", "ringfence", "nothing", request={})["success"] is False
    assert client("mcp.list_mcp_tools", "other")["success"] is False
    skills = client("skills.list_metadata")["data"]["skills"]
    assert {"python.run", "shell.run"} <= {skill["name"] for skill in skills}
    assert [one["name"] for one in client("skills.list_metadata", names="python.run")["data"]["skills"]] == [
        "python.run"
    ]
    assert "Run Python" in client("skills.get_content", "python.run")["data"]["content"]
    assert client("skills.get_content", "nothing")["success"] is False


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("browser.get_info", {}),
        ("browser.set_config", {}),
        ("browser_page.navigate", {"url": "http://example.org"}),
        ("browser_tabs.list", {}),
        ("display.record", {"action": "start"}),
        ("proxy.list_mappings", {}),
        ("util.convert_to_markdown", {"uri": "file:///x"}),
        ("sandbox.list_hooks", {}),
        ("sandbox.get_nodejs_packages", {}),
        ("nodejs.get_info", {}),
        ("nodejs.list_sessions", {}),
        ("nodejs.create_session", {}),
        ("skills.clear_skills", {}),
        ("skills.register_skills", {"file": ("a.zip", b"x")}),
    ],
)
def test_what_is_not_here_is_said_and_never_pretended(client: Client, call: str, arguments: dict[str, object]) -> None:
    told = client(call, **arguments)
    assert told["success"] is False
    assert (told["data"] or told)["error_type"] == "not_available"


def test_a_picture_that_nobody_took_is_no_stream(client: Client) -> None:
    with pytest.raises(Raised) as raised:
        client("browser.screenshot")
    assert raised.value.status == 501


def test_a_request_that_is_wrong_is_the_error_that_the_client_knows(client: Client) -> None:
    with pytest.raises(Raised) as raised:
        client("bash.exec", command=7)
    assert (raised.value.kind, raised.value.status) == ("UnprocessableEntityError", 422)
    assert raised.value.body["detail"][0]["loc"] == ["body"]


def test_the_packages_of_a_box_are_listed(client: Client) -> None:
    assert isinstance(client("sandbox.get_python_packages")["data"], list)
