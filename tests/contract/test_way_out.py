"""The way out, as anybody has it: the real proxy, no lab, no host that is ever reached."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import ringfence
from ringfence.outcome import ExecutionResult

POLICY = """
policies:
  tools:
    code_run: {network_access: true, allowed_domains: ["granted.example.com", "localhost.example.com"]}
    shell_exec: {network_access: true, allowed_domains: ["granted.example.com"]}
"""
IMAGES = {"docker": "docker_engine", "gvisor": "gvisor_image"}
ASK = """
import os, socket, sys
for target in sys.argv[1:]:
    with socket.create_connection(('127.0.0.1', 3128), timeout=20) as end:
        end.sendall(f'CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n'.encode())
        print(end.recv(4096).split(b' ')[1].decode())
print(os.environ['https_proxy'])
"""


@pytest.fixture(
    params=[
        pytest.param("native", marks=pytest.mark.needs("native")),
        pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
        pytest.param("docker", marks=pytest.mark.needs("docker")),
        pytest.param("gvisor", marks=pytest.mark.needs("gvisor")),
    ]
)
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> ringfence.SandboxManager:
    if request.param in IMAGES:
        request.getfixturevalue(IMAGES[request.param])
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    return ringfence.SandboxManager(
        home=tmp_path / "home", isolation=request.param, pool_size=0, policy_file=policy, preload=()
    )


def run(manager: ringfence.SandboxManager, *targets: str, **options: Any) -> ExecutionResult:
    async def once() -> ExecutionResult:
        async with manager:
            return await manager.execute_code(
                "python", ASK, 30, args=targets, allow_domains=["granted.example.com"], **options
            )

    return asyncio.run(once())


def test_what_was_not_granted_is_refused_by_name_and_told(manager: ringfence.SandboxManager) -> None:
    result = run(
        manager, "other.example.com:443", "localhost.example.com:443", "127.0.0.1:80", "granted.example.com:22"
    )
    assert result.stdout.split() == ["403", "403", "403", "403", "http://127.0.0.1:3128"], result.stderr
    assert result.network is not None
    assert {(place.host, place.port, place.reason) for place in result.network.destinations} == {
        ("other.example.com", 443, "host"),
        ("localhost.example.com", 443, "host"),
        ("127.0.0.1", 80, "denied_address"),
        ("granted.example.com", 22, "port"),
    }
    assert (result.used.bytes_in, result.network.bytes_out) == (0, 0)


def test_a_process_and_a_session_have_the_way_out_they_asked_for(manager: ringfence.SandboxManager) -> None:
    program = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)))"

    async def both() -> tuple[str, str]:
        async with manager:
            process = await manager.start_process(
                language="python", code=program, allow_domains=["granted.example.com"], timeout=20
            )
            ended = await process.wait()
            async with manager.session(timeout=20, allow_domains=["granted.example.com"]) as session:
                said = await session.run(program)
            return ended.stdout, said.stdout

    assert asyncio.run(both()) == ("0\n", "0\n")


def test_without_asking_there_is_no_door(manager: ringfence.SandboxManager) -> None:
    async def once() -> ExecutionResult:
        async with manager:
            return await manager.execute_code(
                "python", "import socket; print(socket.socket().connect_ex(('127.0.0.1', 3128)))", 20
            )

    assert asyncio.run(once()).stdout == "111\n"
