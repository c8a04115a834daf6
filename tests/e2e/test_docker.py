"""Runs in containers through the doors that people use: the command, the manager, and the evidence of both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import container_engine
from tests.command_line import told
from tests.container_engine import Engine
from tests.http_service import serving

from ringfence import DockerSimpleSandbox, ExecutionRequest, InvalidRequest, Limits, SandboxManager, SecurityMode
from ringfence.errors import Unavailable
from ringfence.isolation.docker.carried import SHOWN_AT
from ringfence.outcome import ExecutionResult, SandboxType

pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(120)]

WRITE = "import socket; open('/output/a.txt', 'w').write('made'); print(socket.gethostname())"
THREE = ["/workspace/inputs", "/workspace/work", "/workspace/artifacts"]


def engine_words(engine: Engine) -> dict[str, Any]:
    return {"RINGFENCE_DOCKER_URL": engine.url, "RINGFENCE_DOCKER_IMAGE": os.environ["RINGFENCE_DOCKER_IMAGE"]}


def end_of(home: Path, exec_id: str) -> dict[str, Any]:
    """Return the record of how an execution ended."""
    records = [each["record"] for each in told(home, "evidence", "show", exec_id)["records"]]
    end: dict[str, Any] = next(record for record in records if record["type"] == "exec.end")
    return end


@pytest.fixture(scope="module")
def lived(docker_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A home in which the command ran something in a container, and what it answered."""
    home = tmp_path_factory.mktemp("home")
    return home, told(home, "run", "--isolation", "docker", "-c", WRITE, **engine_words(docker_engine))


def test_the_command_runs_code_in_a_container_named_after_the_sandbox(lived: tuple[Path, dict[str, Any]]) -> None:
    _, answer = lived
    assert (answer["status"], answer["sandbox_type"], answer["backend"]) == ("succeeded", "docker", "docker")
    assert answer["stdout"].strip() == answer["sandbox_id"] != socket.gethostname()
    assert [artifact["path"] for artifact in answer["artifacts"]] == ["a.txt"]


def test_the_evidence_names_the_image_by_its_digest_and_has_the_command_line(
    docker_engine: Engine, lived: tuple[Path, dict[str, Any]]
) -> None:
    home, answer = lived
    end = end_of(home, answer["exec_id"])
    image = docker_engine.docker("image", "inspect", "--format", "{{.Id}}", os.environ["RINGFENCE_DOCKER_IMAGE"])
    assert (end["image"], end["image_digest"]) == (os.environ["RINGFENCE_DOCKER_IMAGE"], image.stdout.strip())
    assert {"--network=none", "--cap-drop=ALL", "--read-only", "--user=1000:1000"} <= set(end["argv"])
    assert end["argv"][0] == "docker"


def test_only_the_three_directories_of_the_workspace_are_mounted(lived: tuple[Path, dict[str, Any]]) -> None:
    home, answer = lived
    end = end_of(home, answer["exec_id"])
    assert [mount["target"] for mount in end["mounts"]] == THREE
    (source,) = (mount["source"] for mount in end["mounts"] if mount["source"] != "tmpfs")
    assert Path(source).is_relative_to(home / "boxes")
    assert [word for word in end["argv"] if "source=" in word or word.startswith(("-v", "--volume"))] == [
        f"--mount=type=bind,source={source},target=/workspace/inputs,readonly"
    ]


def test_a_result_tells_what_it_was_made_from(lived: tuple[Path, dict[str, Any]]) -> None:
    _, answer = lived
    container = answer["isolation"]["container"]
    assert container["image_digest"].startswith("sha256:")
    assert [mount["mode"] for mount in container["mounts"]] == ["ro", "rw", "rw"]


async def test_a_running_application_makes_containers_from_the_image_built_last_and_each_names_its_own(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFENCE_DOCKER_IMAGE", "ringfence-again:tests")

    def build(name: str) -> str:
        (tmp_path / "which").write_text(name)
        made = docker_engine.docker("create", container_engine.IMAGE).stdout.strip()
        docker_engine.docker("cp", str(tmp_path / "which"), f"{made}:/which")
        digest = docker_engine.docker("commit", made, "ringfence-again:tests").stdout.strip()
        docker_engine.docker("rm", made)
        return digest

    images = {build("first"): "first"}
    seen = []
    async with SandboxManager(home=tmp_path / "home", isolation="docker", pool_size=1) as manager:
        for number in range(4):
            if number == 1:
                images[await asyncio.to_thread(build, "second")] = "second"
            result = await manager.execute(ExecutionRequest("print(open('/which').read(), end='')"))
            seen.append(result.stdout)
            end = end_of(tmp_path / "home", result.exec_id)
            assert images[end["image_digest"]] == result.stdout  # also of one that was parked before
    assert (seen[0], seen[-1]) == ("first", "second")


async def test_a_simple_sandbox_has_a_container_for_every_execution(docker_engine: Engine, tmp_path: Path) -> None:
    async with DockerSimpleSandbox("s1", home=tmp_path, limits=Limits(memory_bytes=64 << 20)) as sandbox:
        first = await sandbox.execute(ExecutionRequest("open('kept.txt', 'w').write('1'); print(1)"))
        second = await sandbox.execute(ExecutionRequest("print(open('kept.txt').read())"))
        assert (first.sandbox_type, first.stdout, second.stdout) == (SandboxType.DOCKER, "1\n", "1\n")
        assert first.sandbox_id != second.sandbox_id
        assert sandbox.pool_pids() == []
        hungry = await sandbox.execute(ExecutionRequest("x = b'1' * (256 << 20)"))
        assert hungry.killed_by == "memory"
        alone = (
            "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 2)\nexcept OSError as e: print(e.errno)"
        )
        assert (await sandbox.execute(ExecutionRequest(alone))).stdout == "101\n"


def test_a_simple_sandbox_is_nothing_else() -> None:
    for argument in ({"isolation": "native"}, {"pool_size": 2}, {"url": "http://127.0.0.1:1"}):
        with pytest.raises(InvalidRequest, match=f"has no {next(iter(argument))}"):
            DockerSimpleSandbox(**argument)


async def test_a_manager_told_where_the_engine_is_uses_that(docker_engine: Engine, tmp_path: Path) -> None:
    async with SandboxManager(home=tmp_path, isolation="docker", docker_url=docker_engine.url, pool_size=0) as manager:
        result = await manager.execute(ExecutionRequest("print(1)"))
    assert result.stdout == "1\n"
    assert result.isolation.container is not None
    assert docker_engine.url in result.isolation.container.argv


def test_an_engine_elsewhere_gets_its_inputs_through_the_stream(docker_engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[docker]\nremote = true\n")
    (tmp_path / "data.txt").write_text("given")
    program = (
        "print(open('/workspace/inputs/data.txt').read())\n"
        "try: open('/workspace/inputs/data.txt', 'w')\nexcept OSError as error: print(error.errno)"
    )
    words = ("--isolation", "docker", "--input", str(tmp_path / "data.txt"), "-c", program)
    answer = told(tmp_path, "run", *words, **engine_words(docker_engine))
    assert answer["stdout"] in ("given\n13\n", "given\n30\n")
    assert [mount["source"] for mount in answer["isolation"]["container"]["mounts"]] == ["tmpfs"] * 3


@pytest.fixture
def over_tcp(docker_engine: Engine) -> Iterator[str]:
    """The address of the engine as one on another machine has it: TCP, with a network in between."""
    there = docker_engine.url.removeprefix("unix://")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_forward, args=(listening, there), daemon=True).start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def _forward(listening: socket.socket, there: str) -> None:
    with contextlib.suppress(OSError):  # until the test is over
        while True:
            near, _ = listening.accept()
            threading.Thread(target=_carry, args=(near, there), daemon=True).start()


def _carry(near: socket.socket, there: str) -> None:
    with near, socket.socket(socket.AF_UNIX) as far, contextlib.suppress(OSError):
        far.connect(there)
        ways = {near: far, far: near}
        while ways:
            for source in select.select(list(ways), [], [])[0]:
                data = source.recv(1 << 16)
                if data:
                    ways[source].sendall(data)
                else:
                    ways.pop(source).shutdown(socket.SHUT_WR)


async def test_an_engine_over_tcp_is_elsewhere_and_keeps_a_session_all_the_same(over_tcp: str, tmp_path: Path) -> None:
    async def run(code: str, **options: Any) -> ExecutionResult:
        # no pool: every run is made, given its session's files and taken apart through that address
        async with SandboxManager(
            "s1", home=tmp_path, isolation="docker", docker_url=over_tcp, pool_size=0, security_mode="permissive"
        ) as manager:
            return await manager.execute(ExecutionRequest(code, **options))

    wrote = await run(
        "import shutil; shutil.copy('/workspace/inputs/in', 'kept'); print('wrote')", inputs={"in": b"x" * 300_000}
    )
    assert (wrote.stdout, wrote.stderr) == ("wrote\n", "")
    read = await run("print(len(open('kept').read())); open('/output/a', 'w').write('b')")
    assert read.stdout == "300000\n"
    assert {each.path: each.read() for each in read.artifacts} == {"a": b"b"}
    made_from = read.isolation.container
    assert made_from is not None
    assert [mount.source for mount in made_from.mounts] == ["tmpfs"] * 3
    # that this one is on this machine after all is not the engine's word: the kernel shows its processes
    assert {"pid", "mnt", "net"} <= set(read.isolation.namespaces)


async def test_an_engine_that_is_cut_off_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    async with SandboxManager(
        home=tmp_path, isolation="docker", docker_url=f"tcp://127.0.0.1:{port}", pool_size=0, security_mode="permissive"
    ) as manager:
        with pytest.raises(Unavailable) as refused:
            await manager.execute(ExecutionRequest("print(1)"))
    assert "\n" not in str(refused.value)
    assert refused.value.fix


def test_the_argv_that_is_kept_holds_no_program(lived: tuple[Path, dict[str, Any]]) -> None:
    _, answer = lived
    assert "made" not in json.dumps(answer["isolation"]["container"])


@pytest.mark.needs("gvisor")
async def test_with_gvisor_as_its_runtime_the_guest_meets_another_kernel(
    docker_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if docker_engine.process is None:
        pytest.skip("this engine is the machine's, whose runtimes are not a test's to choose")
    assert "runsc" in docker_engine.docker("info", "--format", "{{json .Runtimes}}").stdout
    monkeypatch.setenv("RINGFENCE_DOCKER_RUNTIME", "runsc")
    async with SandboxManager(
        home=tmp_path, isolation="docker", pool_size=0, security_mode=SecurityMode.PERMISSIVE
    ) as manager:
        result = await manager.execute(ExecutionRequest("import os; print(os.uname().release, os.getuid())"))
    assert (result.sandbox_type, result.stdout) == (SandboxType.GVISOR, "4.4.0 1000\n")
    assert result.isolation.seccomp_filters > 0
    # Debian's build knows no such bound of a directory in memory
    assert "the number of files is not limited" in " ".join(result.isolation.notes)


@pytest.fixture(scope="module")
def bare_image(docker_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that has a shell and nothing else."""
    tarball = tmp_path_factory.mktemp("bare") / "bare.tar"
    needed = subprocess.run(["ldd", "/bin/bash"], capture_output=True, text=True, check=True).stdout
    with tarfile.open(tarball, "w", dereference=True) as tar:
        for path in ("/bin/bash", *re.findall(r"/\S+", needed)):
            tar.add(path)
    return docker_engine.load(tarball, "ringfence-bare:tests", changes=[])


def test_an_image_without_python_is_refused_with_the_fix(
    docker_engine: Engine, bare_image: str, tmp_path: Path
) -> None:
    words = {**engine_words(docker_engine), "RINGFENCE_DOCKER_IMAGE": bare_image}
    answer = told(tmp_path, "run", "--isolation", "docker", "-c", "print(1)", code=7, **words)
    assert answer["reason"] == "runtime_missing"
    assert "bring_python = true" in answer["fix"]


@pytest.mark.needs("system_python")
def test_an_image_without_python_is_brought_this_machines_own(
    docker_engine: Engine, bare_image: str, tmp_path: Path
) -> None:
    (tmp_path / "config.toml").write_text(f'[docker]\nimage = "{bare_image}"\nbring_python = true\n')
    words: dict[str, Any] = {"RINGFENCE_DOCKER_URL": docker_engine.url}
    python = told(tmp_path, "run", "--isolation", "docker", "-c", "import hashlib, json; print(6 * 7)", **words)
    assert python["stdout"] == "42\n"
    shell = told(
        tmp_path, "run", "--isolation", "docker", "--language", "bash", "-c", "echo $((6 * 7)) > a.txt", **words
    )
    assert shell["files_written"] == ["a.txt"]
    assert [mount["target"] for mount in python["isolation"]["container"]["mounts"]] == [*THREE, SHOWN_AT]


def test_the_file_beside_the_artifacts_of_an_execution_says_what_its_container_was_made_from(
    docker_engine: Engine, tmp_path: Path
) -> None:
    words = {**engine_words(docker_engine), "RINGFENCE_SANDBOX_ISOLATION": "docker"}
    body = {
        "project_id": "p1",
        "exec": {"kind": "python", "command": "python", "args": ["-c", WRITE]},
        "wait": True,
    }
    with serving(tmp_path, **words) as service:
        ran = service.ask("POST", "/sandbox/execs", body).json
        detail = service.ask("GET", f"/sandbox/execs/{ran['exec_id']}").json
        health = service.ask("GET", "/sandbox/health").json
    (meta_file,) = (tmp_path / "workspace").rglob("meta.json")
    meta = json.loads(meta_file.read_text())
    assert (ran["status"], meta["backend"]) == ("succeeded", "docker")
    assert meta["image"] == detail["image"] == os.environ["RINGFENCE_DOCKER_IMAGE"]
    assert meta["image_digest"].startswith("sha256:")
    assert [mount["target"] for mount in meta["docker_mounts"]] == THREE
    assert "--network=none" in meta["docker_argv"]
    assert [each["name"] for each in health["backends"]] == ["docker"]
    assert {each["name"]: each["needed"] for each in health["checks"]}["docker"]
