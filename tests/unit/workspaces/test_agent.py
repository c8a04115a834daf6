"""`AgentWorkspace`: the example of the specification as it stands, and what its paths mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import ringfence
from ringfence.capability.limits import Limits
from ringfence.errors import CapabilityBlocked, InvalidRequest, PathTraversalError, QuotaExceeded
from ringfence.workspaces.agent import AgentWorkspace
from ringfence.workspaces.session import SessionWorkspace

# 002 §4.3; only its import line is another one.
EXAMPLE = """
from ringfence import AgentWorkspace

workspace = AgentWorkspace("session_123")

# 安全的文件操作
workspace.write_file("output/result.txt", "Hello")
content = workspace.read_file("output/result.txt")

# 路径遍历攻击会被阻止
workspace.write_file("../../etc/passwd", "hack")  # 抛出 PathTraversalError
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentWorkspace]:
    with AgentWorkspace("s1", home=tmp_path) as made:
        yield made


def test_the_example_of_the_specification_runs_to_its_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path / "home"))
    names: dict[str, object] = {}
    with pytest.raises(PathTraversalError) as refusal:
        exec(EXAMPLE, names)
    assert (refusal.value.code, refusal.value.reason) == ("SANDBOX.CAPABILITY_BLOCKED", "path_traversal")
    assert names["content"] == "Hello"
    assert [path.name for path in (tmp_path / "home").rglob("*.txt")] == ["result.txt"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../../secret", "a/../../x", "..", "/workspace/work/../../x"])
def test_the_three_checks_of_the_specification_refuse(agent: AgentWorkspace, path: str) -> None:
    for call in (agent.read_file, agent.exists, agent.delete_file, agent.list_files):
        with pytest.raises(PathTraversalError):
            call(path)
    with pytest.raises(PathTraversalError):
        agent.write_file(path, "hack")


def test_text_and_bytes_come_back_as_they_were(agent: AgentWorkspace) -> None:
    agent.write_file("数据/größe.txt", "größe\n")
    agent.write_file("raw", b"\xff\0")
    assert agent.read_file("数据/größe.txt") == "größe\n"
    assert agent.read_bytes("raw") == b"\xff\0"
    with pytest.raises(InvalidRequest) as refusal:
        agent.read_file("raw")
    assert refusal.value.reason == "invalid_text"


@pytest.mark.parametrize("path", ["a/b", "./a//b", "/workspace/work/a/b", "/workspace/code/a/b", "/workspace/data/a/b"])
def test_every_spelling_of_a_path_means_the_same_file(agent: AgentWorkspace, path: str) -> None:
    agent.write_file(path, "x")
    assert agent.read_file("a/b") == "x"
    assert agent.list_files("a") == ["b"]
    assert agent.list_files() == agent.list_files("/workspace/work") == ["a"]
    agent.delete_file(path)
    assert not agent.exists(path)


def test_a_file_is_replaced_and_its_mode_kept(agent: AgentWorkspace) -> None:
    agent.write_file("run.sh", "one")
    work = agent.areas()["work"].fd
    os.chmod(f"/proc/self/fd/{work}/run.sh", 0o755)
    agent.write_file("run.sh", "two")
    assert agent.read_file("run.sh") == "two"
    assert os.stat("run.sh", dir_fd=work).st_mode & 0o777 == 0o755


@pytest.mark.needs("native")
def test_the_same_relative_path_is_the_same_file_in_the_box(
    agent: AgentWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_HOME", str(tmp_path))
    agent.write_file("output/result.txt", "Hello")
    program = "text = open('output/result.txt').read(); open('output/answer.txt', 'w').write(text + ', agent')"
    result = ringfence.run(program, session_id="s1", pool_size=0, isolation="native")
    assert result.success, result.stderr
    assert agent.read_file("output/answer.txt") == "Hello, agent"
    agent.write_file("output/answer.txt", "changed")
    result = ringfence.run("print(open('output/answer.txt').read())", session_id="s1", pool_size=0, isolation="native")
    assert result.stdout == "changed\n"


def test_inputs_and_artifacts_can_be_read_and_not_written(agent: AgentWorkspace) -> None:
    inputs = agent.areas()["inputs"].fd
    Path(f"/proc/self/fd/{inputs}/given").write_text("given")
    assert agent.read_file("/workspace/inputs/given") == "given"
    for path in ("/workspace/inputs/given", "/workspace/artifacts/x", "/workspace/output/x"):
        with pytest.raises(CapabilityBlocked) as refusal:
            agent.write_file(path, "x")
        assert refusal.value.reason == "read_only"
    with pytest.raises(CapabilityBlocked) as nowhere:
        agent.write_file("/workspace/elsewhere/x", "x")
    assert nowhere.value.reason == "path"


@pytest.mark.parametrize("path", ["", "a/", ".", "/workspace/work"])
def test_a_directory_is_no_file(agent: AgentWorkspace, path: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        agent.write_file(path, "x")
    assert refusal.value.reason == "is_a_directory"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda agent: agent.read_file("none"), "not_found"),
        (lambda agent: agent.read_file("d"), "is_a_directory"),
        (lambda agent: agent.write_file("d", "x"), "is_a_directory"),
        (lambda agent: agent.read_file("d/f/x"), "not_a_directory"),
        (lambda agent: agent.list_files("d/f"), "not_a_directory"),
        (lambda agent: agent.delete_file("d"), "not_empty"),
        (lambda agent: agent.delete_file("none"), "not_found"),
        (lambda agent: agent.write_file("x", 7), "invalid_content"),
        (lambda agent: agent.write_file(7, "x"), "invalid_path"),
        (lambda agent: AgentWorkspace("../x"), "invalid_session_id"),
        (lambda agent: AgentWorkspace(cast(Any, None)), "invalid_session_id"),
    ],
)
def test_what_cannot_be_done_says_why(agent: AgentWorkspace, call: object, reason: str) -> None:
    agent.write_file("d/f", "x")
    with pytest.raises(InvalidRequest) as refusal:
        call(agent)  # type: ignore[operator]
    assert (refusal.value.code, refusal.value.reason) == ("SCHEMA.VALIDATION_FAILED", reason)
    assert not agent.exists("none")
    assert not agent.exists("d/f/x")


def test_a_session_keeps_to_its_quota(tmp_path: Path) -> None:
    with AgentWorkspace("s", home=tmp_path, limits=Limits(disk_bytes=100, inodes=3, file_bytes=90)) as agent:
        with pytest.raises(QuotaExceeded):
            agent.write_file("large", bytes(91))
        agent.write_file("d/a", bytes(60))
        with pytest.raises(QuotaExceeded):
            agent.write_file("b", bytes(41))
        agent.write_file("b", bytes(40))
        with pytest.raises(CapabilityBlocked) as refusal:
            agent.write_file("c", b"")
        assert refusal.value.reason == "max_files"
        assert sorted(agent.list_files()) == ["b", "d"]


def test_a_write_tells_parked_workers_that_they_are_stale(tmp_path: Path) -> None:
    with AgentWorkspace("s", home=tmp_path) as agent, SessionWorkspace.create(tmp_path, "s") as session:
        before = session.generation()
        agent.read_file("x") if agent.exists("x") else agent.write_file("x", "x")
        after = session.generation()
        assert after > before
        agent.read_file("x")
        assert session.generation() == after


def test_a_closed_workspace_uses_no_descriptor_any_more(tmp_path: Path) -> None:
    agent = AgentWorkspace("s", home=tmp_path)
    agent.close()
    agent.close()
    with pytest.raises(InvalidRequest) as refusal:
        agent.read_file("x")
    assert refusal.value.reason == "invalid_handle"


def test_a_workspace_nobody_closed_gives_its_descriptors_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        AgentWorkspace("s", home=tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
