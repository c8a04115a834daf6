"""Attack: a box that came up with a layer missing; the host looks for itself and must refuse it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.security.conftest import BUILT_HERE, Run, does_not_keep

import ringfence
from ringfence import SandboxManager
from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux import landlock, observe
from ringfence.isolation.linux.steps import Code, Steps

pytestmark = pytest.mark.guarantee(12)


# of an image, and emptied ones: a client of an engine may be configured to hand its proxies to every container
OF_NOBODY = {"", "PWD", "PATH", "HOSTNAME", "HOME", "LANG"} | {
    name for each in ("all", "ftp", "http", "https", "no") for name in (f"{each}_proxy", f"{each}_proxy".upper())
}


@pytest.mark.promise("G12 guests are processes of this machine")
async def test_what_the_host_sees_of_a_parked_worker_is_every_layer(backend: str) -> None:
    async with SandboxManager(isolation=backend) as manager:
        while not manager.pool_pids():  # noqa: ASYNC110  the pool tells nobody when a worker is ready
            await asyncio.sleep(0.01)
        init, worker = manager.pool_pids()[0]
        seen = observe.look(worker)
        told = {"user namespace"} if "G5 own ids" in does_not_keep(backend) else set()
        assert set(observe.missing_layers(seen, observe.own_namespaces(), filters=2)) <= told
        assert sorted(os.listdir(f"/proc/{worker}/fd")) == ["0", "1", "2", "3"]
        assert {word.partition("=")[0] for word in read(worker, "environ").split("\0")} <= OF_NOBODY
        assert int(read(init, "status").partition("Seccomp_filters:")[2].split()[0]) >= 1


def read(pid: int, name: str) -> str:
    """Read a file that the kernel keeps about a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


@pytest.mark.promise("G12 guests are processes of this machine")
def test_the_result_carries_the_layers_that_were_seen(backend: str, box: Run) -> None:
    layers = box("pass").isolation
    told = {"user"} if "G5 own ids" in does_not_keep(backend) else set()
    assert set(layers.namespaces) | told == {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"}
    assert layers.capabilities_empty
    assert layers.no_new_privs
    assert layers.seccomp_filters >= 2
    assert layers.host_uid > 0


def test_a_process_that_is_not_sealed_is_refused_and_every_missing_layer_is_named() -> None:
    with pytest.raises(IsolationUnavailable) as refusal:
        observe.require_sealed(observe.look(os.getpid()), observe.own_namespaces(), filters=2)
    for layer in (*(f"{kind} namespace" for kind in observe.NAMESPACES), "no_new_privs", "seccomp"):
        assert layer in str(refusal.value)


SEALED = observe.Observation(
    status={
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Seccomp_filters": "2",
        **dict.fromkeys(("Uid", "Gid"), "1000\t1000\t1000\t1000"),
    },
    namespaces=dict.fromkeys(observe.NAMESPACES, "box"),
)
HOST = dict.fromkeys(observe.NAMESPACES, "host")


def test_a_sealed_process_is_taken() -> None:
    observe.require_sealed(SEALED, HOST, filters=2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, "0000000000000001") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")),
        *(("NoNewPrivs", "0"), ("Seccomp", "0"), ("Seccomp", "1"), ("Seccomp_filters", "1")),
        *(("Uid", "1000\t0\t1000\t1000"), ("Gid", "1000\t1000\t0\t1000")),
    ],
)
def test_one_missing_layer_is_enough_to_be_refused(field: str, value: str) -> None:
    with pytest.raises(IsolationUnavailable):
        observe.require_sealed(replace(SEALED, status={**SEALED.status, field: value}), HOST, filters=2)


@pytest.mark.parametrize("kind", observe.NAMESPACES)
def test_one_shared_namespace_is_enough_to_be_refused(kind: str) -> None:
    shared = {**SEALED.namespaces, kind: "host"}
    with pytest.raises(IsolationUnavailable):
        observe.require_sealed(replace(SEALED, namespaces=shared), HOST, filters=2)


def test_the_canary_of_landlock_sings_where_there_is_no_landlock() -> None:
    steps = Steps(Code(os.uname().machine))
    landlock.prove(steps)
    opened = os.dup(0)
    os.close(opened)
    with pytest.raises(OSError, match=f"openat, step 0: answered {opened} where -13 was due"):
        steps.run()
    os.close(opened)


@pytest.mark.parametrize("backend", BUILT_HERE, indirect=True)
def test_where_no_namespace_can_be_made_nothing_runs(backend: str, tmp_path: Path) -> None:
    text = f"""
import ringfence
from ringfence.errors import IsolationUnavailable
for isolation in ({backend!r}, 'auto'):
    try:
        ringfence.run('print("RAN")', isolation=isolation)
    except IsolationUnavailable as refusal:
        print('refused', refusal.code, refusal.reason)
"""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    environment = {**os.environ, "PYTHONPATH": str(Path(ringfence.__file__).parents[1]), "HOME": str(tmp_path)}
    environment["RINGFENCE_DOCKER_COMMAND"] = str(tmp_path / "no-engine")
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert done.stdout == "refused PROVIDER.UNAVAILABLE isolation_unavailable\n" * 2, done.stderr
