"""What a manager with an address says to its service, and what it refuses to leave out."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ringfence import InvalidRequest, Limits, SandboxManager, Unavailable
from ringfence.client.artifacts import RemoteArtifact
from ringfence.client.forms import Asking, GrantInUse, exec_form, operation_form
from ringfence.errors import Denied
from ringfence.operation.brokered import FsRead, ProcExec
from ringfence.operation.code import CodeRun, Language
from ringfence.wire.address import Address, parse_address

URL = "http://127.0.0.1:8321"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8321", Address("http://127.0.0.1:8321", "127.0.0.1", 8321)),
        ("http://localhost", Address("http://localhost", "localhost", 80)),
        ("http://[::1]:5", Address("http://[::1]:5", "::1", 5)),
        ("https://example.com", Address("https://example.com", "example.com", 443, tls=True)),
        ("https://example.com/a/b/", Address("https://example.com", "example.com", 443, "/a/b", tls=True)),
        ("unix:/run/x.sock", Address("unix:/run/x.sock", socket_path="/run/x.sock")),
        ("http+unix://%2Frun%2Fx.sock", Address("unix:/run/x.sock", socket_path="/run/x.sock")),
    ],
)
def test_an_address_is_read_as_it_is_written(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    "more",
    [
        {"home": "/tmp/h"},
        {"policy_file": "p.yaml"},
        {"executors": {"fs": False}},
        {"budget_service": "https://q.example"},
        {"database": "postgresql://d"},
        {"pool_size": 2},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_only_the_service_can_say_is_refused_beside_an_address(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SandboxManager(url=URL, **more)
    assert refused.value.reason == "of_the_service"
    assert next(iter(more)) in str(refused.value)


def test_a_key_without_an_address_is_a_mistake() -> None:
    with pytest.raises(InvalidRequest, match="api_key is for a service"):
        SandboxManager(api_key="rfk_x")


def test_a_manager_with_an_address_never_makes_an_engine() -> None:
    manager = SandboxManager(url=URL)
    for ask in (manager.pool_status, manager.pool_pids, lambda: manager.engine):
        with pytest.raises(InvalidRequest) as refused:
            ask()
        assert refused.value.reason == "of_the_service"


def test_a_run_says_nothing_that_was_not_asked_for() -> None:
    body = exec_form(CodeRun(Language.BASH, "ls"), Asking())
    assert body == {"exec": {"kind": "shell", "code": "ls"}, "ephemeral": True}


def test_limits_of_a_manager_that_an_operation_would_not_be_held_to_are_refused() -> None:
    asking = Asking("s", limits={"max_bytes_in": 1})
    with pytest.raises(InvalidRequest, match="max_bytes_in"):
        operation_form(FsRead("work/a"), asking)
    timed = Asking("s", limits={"wall_seconds": 1.0})
    with pytest.raises(InvalidRequest, match="wall_seconds"):
        operation_form(FsRead("work/a"), timed)
    assert operation_form(ProcExec("ls", timeout_ms=1000), timed)["operation"]["timeout_ms"] == 1000


def test_a_grant_goes_beside_the_body_and_not_at_all_once_its_call_is_over() -> None:
    grant = GrantInUse("secret-token", "c1")
    asking = Asking(grant=grant)
    assert asking.headers() == {"X-Ringfence-Grant": "secret-token", "X-Ringfence-Call": "c1"}
    assert "secret-token" not in repr(asking) + repr(exec_form(CodeRun(Language.BASH, "ls"), asking))
    grant.is_over = True
    with pytest.raises(Denied) as refused:
        asking.headers()
    assert refused.value.reason == "replayed"


def test_an_artifact_is_fetched_once_and_only_taken_if_it_is_the_one() -> None:
    asked: list[int] = []

    def fetch(longest: int) -> bytes:
        asked.append(longest)
        return b"abc"

    artifact = RemoteArtifact("a", 3, hashlib.sha256(b"abc").hexdigest(), fetch)
    assert (artifact.read(), artifact.content, asked) == (b"abc", b"abc", [3])
    assert artifact.to_dict() == {"path": "a", "size": 3, "sha256": artifact.sha256}
    for wrong in (RemoteArtifact("a", 3, "00" * 32, fetch), RemoteArtifact("a", 4, artifact.sha256, fetch)):
        with pytest.raises(Unavailable) as refused:
            wrong.read()
        assert refused.value.reason == "damaged"


def test_limits_are_the_default_where_nothing_is_said() -> None:
    manager = SandboxManager(url=URL, limits=Limits(wall_seconds=5))
    service = manager._service()
    assert service is not None
    assert service._within(manager._asks.usual).limits == {"wall_seconds": 5}
