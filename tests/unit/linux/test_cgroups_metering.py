"""The meter without cgroups: its parsers on recorded texts, and the sentence that states what it cannot hold."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from ringfence.capability.limits import MIB, Limits
from ringfence.isolation.linux.metering import (
    ProcMeter,
    cpu_ticks,
    parse_children,
    proportional_bytes,
    queued_bytes,
    resident_bytes,
    table_bytes,
    worst_overshoot,
)

STATUS = b"Name:\tpython3\nVmRSS:\t   11800 kB\nRssAnon:\t    4200 kB\nRssFile:\t    7500 kB\nRssShmem:\t     100 kB\n"
STATUS += b"VmPTE:\t      68 kB\nVmSwap:\t     200 kB\n"
ROLLUP = b"""\
55d0 ---p 00000000 00:00 0                  [rollup]
Rss:               11800 kB
Pss:                6000 kB
Pss_Dirty:          2000 kB
Pss_Anon:           3000 kB
Swap:                600 kB
SwapPss:             500 kB
"""


@given(st.binary(max_size=15), st.lists(st.integers(0, 2**40), min_size=4, max_size=4))
def test_cpu_is_own_plus_reaped_whatever_the_command_is_called(command: bytes, times: list[int]) -> None:
    before = b" ".join(b"%d" % number for number in range(4, 14))
    text = b"42 (" + command + b") S " + before + b" " + b" ".join(b"%d" % t for t in times) + b" 20 0 1 0 99\n"
    assert cpu_ticks(text) == sum(times)


def test_pss_is_taken_with_what_was_swapped_out_and_not_its_parts() -> None:
    assert proportional_bytes(ROLLUP) == 6500 * 1024


def test_without_permission_anonymous_and_shared_memory_are_counted_and_files_are_not() -> None:
    assert resident_bytes(STATUS) == 4500 * 1024


def test_page_tables_are_counted_beside_the_pages() -> None:
    assert table_bytes(STATUS) == 68 * 1024


def test_what_waits_in_sockets_is_counted_in_both_directions_and_a_line_that_was_cut_is_not() -> None:
    heading = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    line = b"   0: 0100007F:1F90 0100007F:9C40 01 00000010:00000200 00:00000000 00000000  1000        0 4242 1\n"
    assert queued_bytes(heading) == 0
    assert queued_bytes(heading + line + line) == 2 * 0x210
    assert queued_bytes(heading + line + line[:40]) == 0x210


def test_children_are_the_words_of_the_list() -> None:
    assert parse_children(b"12 13 ") == [12, 13]
    assert parse_children(b"") == []


def test_a_process_that_is_gone_counts_for_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    sample = ProcMeter((pid,)).sample()
    assert (sample.pids, sample.memory_bytes, sample.cpu_seconds) == (0, 0, 0.0)


def test_the_overshoot_is_stated_with_both_numbers_and_the_gap_in_rlimit_data() -> None:
    stated = worst_overshoot(Limits(memory_bytes=1024 * MIB, pids=256), 0.05, cores=2)
    assert stated.between_samples_bytes == round(0.05 * 16 * 1024 * MIB * 2)
    assert stated.hard_bytes == 255 * 1024 * MIB
    assert "sampled every 50 ms" in stated.sentence
    assert "up to 1638 MiB" in stated.sentence
    assert "262144 MiB in all" in stated.sentence
    assert "RLIMIT_DATA does not count shared memory" in stated.sentence
    assert "buffers of pipes and Unix sockets" in stated.sentence


@given(st.integers(1, 2**36), st.integers(1, 4096), st.floats(0.001, 10.0), st.integers(1, 256))
def test_the_overshoot_between_samples_never_passes_the_hard_bound(
    size: int, pids: int, interval: float, cores: int
) -> None:
    stated = worst_overshoot(Limits(memory_bytes=size, pids=pids), interval, cores)
    assert 0 <= stated.between_samples_bytes <= stated.hard_bytes == size * (pids - 1)
