"""A worker is believed only when the kernel reports every layer; each missing one is named."""

from __future__ import annotations

import dataclasses
import os

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.isolation.linux.observe import (
    NAMESPACES,
    Observation,
    look,
    missing_layers,
    own_namespaces,
    read_status,
    require_sealed,
)

HOST = {kind: f"{kind}:[402653{number}]" for number, kind in enumerate(NAMESPACES)}
NOTHING = "0000000000000000"
SEALED = Observation(
    status={
        "Name": "python3",
        "Uid": "1917190145\t1917190145\t1917190145\t1917190145",
        "Gid": "1917190145\t1917190145\t1917190145\t1917190145",
        "CapInh": NOTHING,
        "CapPrm": NOTHING,
        "CapEff": NOTHING,
        "CapBnd": NOTHING,
        "CapAmb": NOTHING,
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "Seccomp_filters": "2",
    },
    namespaces={kind: f"{kind}:[499999{number}]" for number, kind in enumerate(NAMESPACES)},
)


def with_status(**changed: str) -> Observation:
    return dataclasses.replace(SEALED, status={**SEALED.status, **changed})


def test_a_sealed_worker_lacks_nothing() -> None:
    assert missing_layers(SEALED, HOST, filters=2) == ()
    require_sealed(SEALED, HOST, filters=2)


@pytest.mark.parametrize("kind", NAMESPACES)
def test_a_shared_namespace_is_named(kind: str) -> None:
    shared = dataclasses.replace(SEALED, namespaces={**SEALED.namespaces, kind: HOST[kind]})
    assert missing_layers(shared, HOST, filters=2) == (f"{kind} namespace",)


@pytest.mark.parametrize("name", ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
def test_a_capability_that_is_left_is_named(name: str) -> None:
    assert missing_layers(with_status(**{name: "0000000000000400"}), HOST, filters=2) == (f"empty {name}",)


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"NoNewPrivs": "0"}, "no_new_privs"),
        ({"Seccomp": "0"}, "seccomp"),
        ({"Seccomp": "1"}, "seccomp"),
        ({"Seccomp_filters": "1"}, "seccomp"),
        ({"Uid": "1000\t1000\t0\t1000"}, "an id other than the host's 0"),
        ({"Gid": "0\t0\t0\t0"}, "an id other than the host's 0"),
    ],
)
def test_each_other_layer_is_named(changed: dict[str, str], missing: str) -> None:
    assert missing_layers(with_status(**changed), HOST, filters=2) == (missing,)


def test_a_kernel_that_reports_nothing_is_not_believed() -> None:
    silent = {name: text for name, text in SEALED.status.items() if name not in ("NoNewPrivs", "Seccomp")}
    seen = dataclasses.replace(SEALED, status=silent)
    assert missing_layers(seen, HOST, filters=2) == ("no_new_privs", "seccomp")


def test_a_refusal_names_everything_that_is_missing() -> None:
    with pytest.raises(IsolationUnavailable, match=r"net namespace, empty CapEff, seccomp; nothing ran"):
        require_sealed(
            Observation({**SEALED.status, "CapEff": "1", "Seccomp": "0"}, {**SEALED.namespaces, "net": HOST["net"]}),
            HOST,
            filters=2,
        )


def test_this_very_process_is_not_taken_for_a_box() -> None:
    missing = missing_layers(look(os.getpid()), own_namespaces(), filters=2)
    assert {f"{kind} namespace" for kind in NAMESPACES} <= set(missing)


def test_a_program_can_put_no_line_into_what_is_read_of_it() -> None:
    told = "Umask:\t0022\nUid:\t5\t5\t5\t5\nSeccomp:\t2\nSeccomp_filters:\t2\nSpeculation:\tUid:\t0\n"
    for name in ("Uid:\t0", "x\\nUid:\t0", "Seccomp:\t0", "\udc80\udcff"):
        text = f"Name:\t{name}\n{told}".encode("utf-8", "surrogateescape")
        assert read_status(text) == {"Uid": "5\t5\t5\t5", "Seccomp": "2", "Seccomp_filters": "2"}
