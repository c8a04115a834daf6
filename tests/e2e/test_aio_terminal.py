"""A terminal for AIO's clients over a websocket: typed to, resized, ended with its connection, shut to strangers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.http_service import Service, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

pytestmark = [pytest.mark.needs("native"), pytest.mark.once]
HEADERS = {"X-Ringfence-Project": "terminal"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("aio-terminal"), "--aio") as running:
        yield running


def opened(service: Service, query: str = "", **more: Any) -> ClientConnection:
    wire: ClientConnection = connect(
        f"ws://127.0.0.1:{service.port}/v1/shell/ws{query}", open_timeout=60, proxy=None, **more
    )
    return wire


def say(wire: ClientConnection, kind: str, data: object) -> None:
    wire.send(json.dumps({"type": kind, "data": data}))


def until(wire: ClientConnection, wanted: str) -> str:
    """Read the terminal until it shows something."""
    seen = ""
    while wanted not in seen:
        message = json.loads(wire.recv(timeout=60))
        if message["type"] == "output":
            seen += message["data"]
    return seen


def test_a_terminal_is_typed_to_and_ends_with_its_connection(service: Service) -> None:
    with opened(service, f"?api_key={service.key}", additional_headers=HEADERS) as wire:
        first, second = (json.loads(wire.recv(timeout=60)) for _ in range(2))
        assert (first["type"], second["type"]) == ("session_id", "ready")
        say(wire, "resize", {"cols": 77, "rows": 33})
        say(wire, "input", "stty size; echo é > left.txt; echo do''ne\n")
        assert "33 77" in until(wire, "done")
        say(wire, "pong", {"timestamp": 1})
        listed = service.ask("GET", "/sandbox/processes").json["items"]
        assert [one["state"] for one in listed if one["process_id"] == first["data"]] == ["running"]
    while service.ask("GET", f"/sandbox/processes/{first['data']}").json["state"] == "running":
        pass
    body = {"file": "left.txt"}
    assert service.ask("POST", "/v1/file/read", body, headers=HEADERS).json["data"]["content"] == "é\n"


def test_whoever_leaves_the_shell_is_told_goodbye(service: Service) -> None:
    with opened(service, additional_headers={"X-AIO-API-Key": str(service.key)}) as wire:
        say(wire, "input", "exit\n")
        with pytest.raises(ConnectionClosed) as closed:
            until(wire, "never said")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000


@pytest.mark.parametrize(
    "sent", ["{", "[]", "1", '{"type": "x"}', '{"type": "resize", "data": {"cols": 0, "rows": 1}}', "{}"]
)
def test_a_message_that_is_none_ends_the_terminal(service: Service, sent: str) -> None:
    with opened(service, additional_headers={"X-AIO-API-Key": str(service.key)}) as wire:
        wire.send(sent)
        with pytest.raises(ConnectionClosed) as closed:
            until(wire, "never said")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    assert "failed with" not in "".join(service.said)


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [("", {}, 401), ("?api_key=rfk_x_y", {}, 401), ("key", {"Origin": "https://evil.example"}, 403)],
)
def test_nobody_without_a_key_and_no_page_of_another_site_gets_one(
    service: Service, query: str, headers: dict[str, str], status: int
) -> None:
    asked = f"?api_key={service.key}" if query == "key" else query
    with pytest.raises(InvalidStatus) as refused, opened(service, asked, additional_headers=headers):
        pass
    assert refused.value.response.status_code == status
