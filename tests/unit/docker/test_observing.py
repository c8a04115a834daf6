"""What is made of a look at a container: which layers it must have, and what is said where nobody could look."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.isolation.docker.engine import Container
from ringfence.isolation.docker.observing import (
    NAMESPACES_TOLD,
    NO_USER_NAMESPACE,
    Sight,
    open_process,
    require_layers,
    sight_of,
)
from ringfence.isolation.linux import observe
from ringfence.isolation.stream.parking import Hello

HOST = dict.fromkeys(observe.NAMESPACES, "host")
HELLO = Hello(worker_pid=7, python="3.11.2", landlock_abi=4, filters=2, notes=("said inside",))
SEEN = observe.Observation(
    status={
        **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0000000000000000"),
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Seccomp_filters": "3",
        **dict.fromkeys(("Uid", "Gid"), "1000\t1000\t1000\t1000"),
    },
    namespaces={**dict.fromkeys(observe.NAMESPACES, "own"), "user": "host"},
)
V1 = b"4:memory:/docker/abc\n0::/\n"
INIT = replace(SEEN, status={**SEEN.status, "Seccomp_filters": "1"})
"""It has the engine's filter, and its worker two more."""
SIGHT = Sight((10, 11), INIT, SEEN, V1, is_complete=True)


def test_a_container_with_every_layer_is_taken_and_described() -> None:
    layers = require_layers(SIGHT, HELLO, HOST)
    assert set(layers.namespaces) == {"mnt", "pid", "net", "ipc", "uts", "cgroup"}
    assert (layers.host_uid, layers.seccomp_filters, layers.landlock_abi, layers.cgroup) == (1000, 3, 4, "v1")
    assert layers.notes == (NO_USER_NAMESPACE, "said inside")


def test_one_of_a_rootless_engine_shares_no_ids_and_is_not_said_to() -> None:
    own = dict.fromkeys(observe.NAMESPACES, "own")
    rootless = replace(SIGHT, init=replace(INIT, namespaces=own), worker=replace(SEEN, namespaces=own))
    assert require_layers(rootless, HELLO, HOST).notes == ("said inside",)


def test_one_that_claims_more_filters_than_the_kernel_counts_is_refused() -> None:
    with pytest.raises(IsolationUnavailable, match="filters that it says it has"):
        require_layers(replace(SIGHT, worker=INIT), HELLO, HOST)
    assert require_layers(replace(SIGHT, worker=INIT), replace(HELLO, filters=0), HOST).seccomp_filters == 1
    uncounted = replace(SEEN, status={name: value for name, value in SEEN.status.items() if name != "Seccomp_filters"})
    assert require_layers(replace(SIGHT, init=uncounted, worker=uncounted), HELLO, HOST).seccomp_filters == 1


@pytest.mark.parametrize("who", ["init", "worker"])
@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("CapBnd", "00000000a80425fb", "empty CapBnd"),
        ("NoNewPrivs", "0", "no_new_privs"),
        ("Seccomp", "0", "seccomp"),
        ("Uid", "0\t0\t0\t0", "an id other than the host's 0"),
    ],
)
def test_one_missing_layer_of_either_process_is_enough_to_be_refused(
    who: str, field: str, value: str, named: str
) -> None:
    lacking = replace(SEEN, status={**SEEN.status, field: value})
    with pytest.raises(IsolationUnavailable, match=named):
        require_layers(replace(SIGHT, **{who: lacking}), HELLO, HOST)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["mnt", "pid", "net", "ipc", "uts"])
def test_a_namespace_of_the_host_is_enough_to_be_refused(kind: str) -> None:
    shared = replace(SEEN, namespaces={**SEEN.namespaces, kind: "host"})
    with pytest.raises(IsolationUnavailable, match=f"{kind} namespace"):
        require_layers(replace(SIGHT, worker=shared), HELLO, HOST)


def test_what_only_the_engine_says_is_said_to_be_its_word() -> None:
    assert NAMESPACES_TOLD in require_layers(replace(SIGHT, is_complete=False), HELLO, HOST).notes


def test_a_process_of_this_machine_that_is_not_the_containers_is_not_looked_at() -> None:
    """An engine elsewhere names pids of its own machine, which may be somebody's here."""
    mine = Container(id="0" * 64, pid=os.getpid(), image_id="sha256:0")
    assert sight_of(mine, 1) is None
    assert open_process(mine) is None
    assert sight_of(replace(mine, pid=0), 1) is None
