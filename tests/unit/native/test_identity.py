"""Host ids of boxes: never 0, inside the maps, and never one id for two purposes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.isolation.native.identity import RANGE, choose_base, host_id, id_map, run_offset, session_offset
from ringfence.workspaces.ids import SESSION_UIDS

BASE = 0x7246_0000
HOST = "         0          0 4294967295\n"
DOCKER_ROOTLESS = "         0       1000          1\n         1     100000      65536\n"
USERNS_REMAP = "         0     231072      65536\n"
PODMAN_KEEP_ID = (
    "         0          1       1000\n      1000          0          1\n      1001       1001      64536\n"
)


@pytest.mark.parametrize(
    ("uid_map", "base"),
    [
        (HOST, BASE),
        (DOCKER_ROOTLESS, None),
        (USERNS_REMAP, None),
        (PODMAN_KEEP_ID, None),
        ("", None),
        # all that is needed, and one too few
        (f"{SESSION_UIDS.start} 5 {BASE + RANGE - SESSION_UIDS.start}\n", BASE),
        (f"{SESSION_UIDS.start} 5 {BASE + RANGE - SESSION_UIDS.start - 1}\n", None),
        (f"{SESSION_UIDS.start + 1} 5 {BASE + RANGE}\n", None),
    ],
)
def test_a_range_is_taken_only_where_all_of_it_is_mapped(uid_map: str, base: int | None) -> None:
    assert choose_base(uid_map) == base


def test_the_map_never_names_the_hosts_root() -> None:
    for line in id_map(BASE).splitlines():
        _, outside, count = map(int, line.split())
        assert outside > 65_535
        assert outside + count < 2**31


@given(st.integers(0, 10**9))
def test_a_run_never_is_the_zygote_itself(counter: int) -> None:
    offset = run_offset(counter)
    assert 1 <= offset < RANGE
    assert BASE < host_id(BASE, offset) < BASE + RANGE


def test_runs_at_the_same_time_have_ids_of_their_own() -> None:
    assert len({run_offset(counter) for counter in range(RANGE - 1)}) == RANGE - 1


@given(st.sampled_from(SESSION_UIDS))
def test_a_session_keeps_the_id_of_its_files(uid: int) -> None:
    assert host_id(BASE, session_offset(uid)) == uid
    assert session_offset(uid) >= RANGE
