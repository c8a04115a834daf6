"""AIO's own client, unchanged, against our surface: commands with pipes and on terminals, in both flavours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import aio_client
from tests.aio_client import Client
from tests.http_service import Service, serving

pytestmark = [pytest.mark.needs("native", "aio_sdk"), pytest.mark.once]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("aio-commands"), "--aio") as running:
        yield running


@pytest.fixture(scope="module", params=["sync", "async"])
def client(service: Service, request: pytest.FixtureRequest) -> Iterator[Client]:
    headers = {"X-AIO-API-Key": str(service.key), "X-Ringfence-Project": request.param}
    with aio_client.connected(f"http://127.0.0.1:{service.port}", flavour=request.param, **headers) as connected:
        yield connected


def test_the_context_tells_where_files_lie(client: Client) -> None:
    told = client("sandbox.get_context")
    assert (told["success"], told["home_dir"]) == (True, "/workspace/work")
    assert told["detail"]["runtime"]["python"][0]["bin"] == "python3"


def test_a_command_tells_both_its_outputs_and_its_exit_code(client: Client) -> None:
    done = client("bash.exec", command="echo out; echo err >&2; exit 3")
    assert done["success"] is True
    data = done["data"]
    assert (data["status"], data["exit_code"], data["stdout"], data["stderr"]) == ("completed", 3, "out\n", "err\n")
    assert (data["offset"], data["stderr_offset"]) == (4, 4)


def test_a_session_of_bash_keeps_its_directory_and_nothing_else(client: Client) -> None:
    made = client("bash.exec", command="mkdir -p kept && export A=1", session_id="dir")["data"]
    assert made["session_id"] == "dir"
    client("bash.exec", command="true", session_id="dir", exec_dir="/workspace/work/kept")
    told = client("bash.exec", command="pwd; echo ${A:-unset} $B", session_id="dir", env={"B": "b"})["data"]
    assert told["stdout"] == "/workspace/work/kept\nunset b\n"
    assert client("bash.exec", command="echo ${B:-unset}", session_id="dir")["data"]["stdout"] == "unset\n"


def test_a_command_that_goes_on_is_read_fed_and_ended(client: Client) -> None:
    command = "echo ready; read line; echo got $line >&2; sleep 60"
    begun = client("bash.exec", command=command, session_id="long", async_mode=True, hard_timeout=60)["data"]
    assert begun["status"] == "running"
    heard = client("bash.output", session_id="long", command_id=begun["command_id"], offset=0, wait=True)["data"]
    assert (heard["stdout"], heard["command"]["status"]) == ("ready\n", "running")
    assert client("bash.write", session_id="long", input="words\n")["success"]
    heard = client(
        "bash.output", session_id="long", offset=heard["offset"], stderr_offset=0, wait=True, wait_timeout=30
    )
    assert (heard["data"]["stdout"], heard["data"]["stderr"]) == ("", "got words\n")
    assert client("bash.kill", session_id="long", signal="SIGKILL")["success"]
    assert client("bash.output", session_id="long", offset=0)["data"]["command"]["status"] == "killed"


def test_a_signal_is_the_programs_to_answer(client: Client) -> None:
    command = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    client("bash.exec", command=command, session_id="asked", async_mode=True)
    client("bash.output", session_id="asked", offset=0, wait=True)
    client("bash.kill", session_id="asked", signal="SIGTERM")
    while (said := client("bash.output", session_id="asked", offset=6, wait=True))["data"]["command"][
        "exit_code"
    ] is None:
        pass
    assert (said["data"]["command"]["status"], said["data"]["command"]["exit_code"]) == ("completed", 5)
    refused = client("bash.kill", session_id="asked", signal="SIGSTOP")
    assert refused["success"] is True  # nothing runs there any more


def test_time_is_bounded_softly_and_hard(client: Client) -> None:
    assert client("bash.exec", command="sleep 30", timeout=0.1, hard_timeout=1)["data"]["status"] == "running"
    ended = client("bash.exec", command="sleep 30", hard_timeout=0.5)
    assert ended["data"]["status"] == "timed_out"
    assert "wall_timeout" in ended["message"]
    beyond = client("bash.exec", command="true", hard_timeout=80_000)
    assert (beyond["success"], beyond["data"]["error_type"]) == (False, "permission_denied")
    assert beyond["data"]["reason"] == "limit_exceeds_ceiling"


def test_long_output_is_cut_and_says_so(client: Client) -> None:
    command = 'python3 -c \'print("x" * 200000, end="")\''
    short = client("bash.exec", command=command, max_output_length=10)["data"]
    assert short["stdout"] == "x" * 10 + "\n[199990 more characters]"
    assert len(client("bash.exec", command=command)["data"]["stdout"]) < 51_000
    assert client("bash.exec", command=command, max_output_length=0)["data"]["stdout"] == "x" * 200_000


def test_sessions_of_bash_are_made_listed_and_closed(client: Client) -> None:
    made = client("bash.create_session", session_id="mine", exec_dir="/workspace")["data"]
    assert (made["session_id"], made["status"], made["working_dir"]) == ("mine", "ready", "/workspace/work")
    assert "mine" in {one["session_id"] for one in client("bash.sessions")["data"]}
    assert client("bash.close_session", "mine")["success"]
    assert "mine" not in {one["session_id"] for one in client("bash.sessions")["data"]}
    again = client("bash.close_session", "mine")
    assert (again["success"], again["data"]["error_type"]) == (False, "not_found")
    assert client("bash.create_session", snapshot_path="/workspace/work/rc")["success"] is False


def test_a_session_of_the_shell_keeps_directory_and_variables_on_a_terminal(client: Client) -> None:
    first = client("shell.exec_command", command="mkdir -p deep; cd deep; export WORDS='two  words\nand a line'; tty")
    assert (first["data"]["status"], first["data"]["exit_code"]) == ("completed", 0)
    assert first["data"]["output"].startswith("/dev/")
    where = first["data"]["session_id"]
    second = client("shell.exec_command", command='pwd; echo "$WORDS"; unset WORDS; cd ..', id=where)["data"]
    assert second["output"] == "/workspace/work/deep\ntwo  words\nand a line\n"
    third = client("shell.exec_command", command="pwd; echo ${WORDS:-gone}; exit 4", id=where)["data"]
    assert (third["output"], third["exit_code"]) == ("/workspace/work\ngone\n", 4)
    shown = client("shell.view", id=where)["data"]
    assert shown["output"] == third["output"]
    assert [record["output"] for record in shown["console"]][1:] == [second["output"], third["output"]]


def test_what_runs_on_a_terminal_is_typed_to_waited_for_and_killed(client: Client) -> None:
    begun = client("shell.exec_command", command="read name; echo hello $name; sleep 60", async_mode=True)["data"]
    where = begun["session_id"]
    assert begun["status"] == "running"
    busy = client("shell.exec_command", command="true", id=where)
    assert (busy["success"], busy["data"]["reason"]) == (False, "conflict")
    assert client("shell.write_to_process", id=where, input="bob", press_enter=True)["data"]["status"] == "running"
    while "hello bob" not in client("shell.view", id=where)["data"]["output"]:
        pass
    assert client("shell.wait_for_process", id=where, seconds=0)["data"]["status"] == "running"
    assert client("shell.kill_process", id=where)["data"]["status"] == "terminated"
    assert client("shell.wait_for_process", id=where, seconds=5)["data"]["status"] == "terminated"
    again = client("shell.exec_command", command="echo lives", id=where)["data"]
    assert again["output"] == "lives\n"


def test_silence_and_time_on_a_terminal_are_told(client: Client) -> None:
    silent = client("shell.exec_command", command="sleep 30", no_change_timeout=1, hard_timeout=5)["data"]
    assert silent["status"] == "no_change_timeout"
    ended = client("shell.exec_command", command="sleep 30", hard_timeout=0.5)["data"]
    assert ended["status"] == "hard_timeout"


def test_sessions_of_the_shell_are_made_changed_counted_and_closed(client: Client) -> None:
    made = client("shell.create_session", id="term", exec_dir="/workspace/work", no_change_timeout=9)["data"]
    assert made == {**made, "session_id": "term", "working_dir": "/workspace/work"}
    assert client("shell.update_session", id="term", no_change_timeout=8)["success"]
    assert client("shell.list_sessions")["data"]["sessions"]["term"]["status"] == "ready"
    assert client("shell.get_session_stats")["data"]["total_sessions"] >= 1
    assert client("shell.cleanup_session", "term")["success"]
    assert client("shell.cleanup_session", "term")["success"] is False
    assert client("shell.cleanup_all_sessions")["success"]
    assert client("shell.list_sessions")["data"]["sessions"] == {}
    assert client("shell.get_terminal_url")["success"] is False


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("bash.output", {"session_id": "nobody"}),
        ("bash.write", {"session_id": "nobody", "input": "x"}),
        ("bash.kill", {"session_id": "nobody"}),
        ("shell.view", {"id": "nobody"}),
        ("shell.wait_for_process", {"id": "nobody"}),
        ("shell.write_to_process", {"id": "nobody", "input": "x", "press_enter": True}),
        ("shell.kill_process", {"id": "nobody"}),
        ("shell.update_session", {"id": "nobody"}),
    ],
)
def test_a_session_that_is_not_there_is_an_answer_the_client_can_read(
    client: Client, call: str, arguments: dict[str, object]
) -> None:
    told = client(call, **arguments)
    assert (told["success"], told["data"]["error_type"], told["data"]["errno_name"]) == (False, "not_found", "ENOENT")


@pytest.mark.parametrize("flavour", ["sync", "async"])
@pytest.mark.parametrize("way", ["header", "bearer", "query", "none"])
def test_the_client_brings_its_key_in_each_of_three_ways(service: Service, flavour: str, way: str) -> None:
    key = service.make_key("agent", "acme")
    headers = {"header": {"X-AIO-API-Key": key}, "bearer": {"Authorization": f"Bearer {key}"}}.get(way, {})
    url, query = f"http://127.0.0.1:{service.port}", key if way == "query" else ""
    with aio_client.connected(url, flavour=flavour, query=query, **headers) as connected:
        if way != "none":
            assert connected("bash.exec", command="echo in")["data"]["stdout"] == "in\n"
            return
        with pytest.raises(aio_client.Raised) as raised:
            connected("bash.exec", command="echo in")
        assert (raised.value.kind, raised.value.status) == ("ApiError", 401)
        assert raised.value.body["success"] is False


def test_a_service_that_ends_takes_what_runs_in_sessions_with_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--aio", RINGFENCE_SERVER_DRAIN_SECONDS="0.2") as ending:
        for path, body in (
            ("bash/exec", {"command": "sleep 60", "async_mode": True}),
            ("shell/exec", {"command": "sleep 60", "async_mode": True}),
            ("jupyter/execute", {"code": "1", "session_id": "open"}),
        ):
            assert ending.ask("POST", f"/v1/{path}", body).json["success"]
        assert ending.end() == 0
        assert "Traceback" not in "".join(ending.said)
        assert "Task" not in "".join(ending.said)
