"""Engines that are not root's, or not reached by a socket of this machine: what they give, and what is said of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told
from tests.container_engine import Engine
from tests.e2e.test_podman import IMAGE, bare_image
from tests.ordinary_user import FIRST, OrdinaryUser, ordinary_user, rootless_dockerd

pytestmark = [pytest.mark.guarantee(29), pytest.mark.timeout(180)]

LOOK = """
import json, os
def attempt(what, *arguments):
    try: what(*arguments)
    except OSError as error: return error.errno
    return 0
print(json.dumps({
    'uid': os.getuid(),
    'mapped': [line.split() for line in open('/proc/self/uid_map')],
    'interfaces': [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:],
    'bounded': open('/proc/self/mountinfo').read().count('nr_inodes='),
    'inputs': attempt(open, '/workspace/inputs/x', 'w'),
}))
"""


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as made:
        yield made


def assert_shut_in(user: OrdinaryUser) -> None:
    """A rootless engine makes the same boxes; without cgroups nobody sees them, and they count for less."""
    answer = user.told("run", "--security", "permissive", "--isolation", "docker", "--json", "-c", LOOK)
    said = json.loads(answer["stdout"])
    assert said["uid"] == 1000
    assert ["1", str(FIRST), "65536"] in said["mapped"]  # what is 1000 in there is nobody here
    assert said["interfaces"] == ["lo"]
    assert said["bounded"] >= 4
    assert said["inputs"] == 30
    layers = answer["isolation"]
    assert (layers["cgroup"], layers["memory_limit"], layers["namespaces"]) == ("none", "none", [])
    assert "bounds neither memory nor processes" in " ".join(layers["notes"])
    refused = user.told("run", "--isolation", "docker", "--json", "-c", "print('RAN')", code=7)
    assert refused["reason"] == "isolation_unavailable"
    assert "RAN" not in json.dumps(refused)


@pytest.mark.needs("ordinary_user", "docker", "rootlesskit", "system_python")
def test_a_rootless_docker_makes_boxes_that_strict_mode_refuses_where_it_has_no_cgroups(user: OrdinaryUser) -> None:
    with rootless_dockerd(user) as url:
        docker = ["docker", "--host", url]
        loaded = user.run(*docker, "import", str(bare_image(user.directory)), IMAGE)
        assert loaded.returncode == 0, loaded.stderr
        user.environment |= {
            "RINGFENCE_DOCKER_URL": url,
            "RINGFENCE_DOCKER_IMAGE": IMAGE,
            "RINGFENCE_DOCKER_BRING_PYTHON": "true",
        }
        assert_shut_in(user)
        assert user.run(*docker, "ps", "--all", "--quiet").stdout == ""


@pytest.mark.needs("ordinary_user", "podman", "system_python")
def test_a_rootless_podman_makes_boxes_that_strict_mode_refuses_where_it_has_no_cgroups(user: OrdinaryUser) -> None:
    tarball = bare_image(user.directory)
    user.environment |= {
        "RINGFENCE_DOCKER_COMMAND": "podman",
        "RINGFENCE_DOCKER_IMAGE": IMAGE,
        "RINGFENCE_DOCKER_BRING_PYTHON": "true",
    }
    made = user.run("podman", "import", str(tarball), IMAGE)
    assert made.returncode == 0, made.stderr
    try:
        assert_shut_in(user)
        assert user.run("podman", "ps", "--all", "--quiet").stdout == ""
        assert user.run("podman", "volume", "ls", "--quiet").stdout == ""
    finally:
        user.run("podman", "system", "migrate")  # ends what podman left running for the next command


@pytest.fixture
def over_ssh(docker_engine: Engine) -> Iterator[tuple[dict[str, str], subprocess.Popen[bytes]]]:
    """An engine behind ssh, with keys of the tests' own, and what the environment must have to reach it."""
    directory = Path(tempfile.mkdtemp(prefix="rf-ssh-"))
    for name in ("host", "own"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (directory / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {directory}/host\nAuthorizedKeysFile {directory}/own.pub\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\nStrictModes no\nPidFile none\n"
        f"PermitRootLogin prohibit-password\nSetEnv DOCKER_HOST={docker_engine.url}\n"
    )
    (directory / "config").write_text(
        f"Host *\nIdentityFile {directory}/own\nUserKnownHostsFile {directory}/known\n"
        "StrictHostKeyChecking accept-new\nBatchMode yes\n"
    )
    ssh = directory / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/config "$@"\n')
    ssh.chmod(0o755)
    own_run = 'mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -e -f "$1"'
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", own_run, "sh", str(directory / "sshd_config")],
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + 20
    while b"listening" not in (directory / "log").read_bytes():
        assert server.poll() is None, (directory / "log").read_text()
        assert time.monotonic() < until
        time.sleep(0.02)  # a condition is waited for, with a bound
    words = {
        "PATH": f"{directory}:{os.environ['PATH']}",
        "RINGFENCE_DOCKER_URL": f"ssh://root@127.0.0.1:{port}",
        "RINGFENCE_DOCKER_IMAGE": os.environ["RINGFENCE_DOCKER_IMAGE"],
    }
    try:
        yield words, server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.needs("docker", "root", "sshd")
def test_an_engine_over_ssh_is_elsewhere_and_one_that_is_cut_off_is_told_in_one_line(
    over_ssh: tuple[dict[str, str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    words: dict[str, Any] = {**over_ssh[0]}
    server = over_ssh[1]
    (tmp_path / "data.txt").write_text("given")
    program = "print(open('/workspace/inputs/data.txt').read()); open('/output/a', 'w').write('b')"
    run = ("--isolation", "docker", "--input", str(tmp_path / "data.txt"), "-c", program)
    answer = told(tmp_path, "run", *run, **words)
    assert (answer["stdout"], [each["path"] for each in answer["artifacts"]]) == ("given\n", ["a"])
    assert [mount["source"] for mount in answer["isolation"]["container"]["mounts"]] == ["tmpfs"] * 3
    os.killpg(server.pid, signal.SIGKILL)
    server.wait(20)
    refused = told(tmp_path, "run", *run, code=7, **words)
    assert refused["reason"] == "engine_unreachable"
    assert "\n" not in refused["error"]
