"""Threads that wait for a service: as many as are needed, never more than allowed, never in the way."""

from __future__ import annotations

import os
import threading

import pytest

from ringfence.wire.lane import Lane


def test_as_many_wait_at_once_as_there_may_be_threads_and_the_rest_get_their_turn() -> None:
    lane, gate, together = Lane(3), threading.Event(), threading.Semaphore(0)
    running, most, lock = 0, 0, threading.Lock()

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.release()
        gate.wait()
        with lock:
            running -= 1
        return 1

    futures = [lane.submit(work) for _ in range(10)]
    for _ in range(3):
        together.acquire()
    gate.set()
    assert [future.result() for future in futures] == [1] * 10
    assert most == 3


def test_a_thread_that_has_nothing_to_do_is_used_again() -> None:
    lane = Lane(8)
    names = {lane.submit(threading.get_ident).result() for _ in range(20)}
    assert len(names) <= 2  # the first may not have come back before the second is asked for


def test_what_goes_wrong_is_whoever_waits_to_know() -> None:
    def fail() -> None:
        raise KeyError("so")

    with pytest.raises(KeyError):
        Lane().submit(fail).result()


def test_what_was_taken_back_before_its_turn_is_never_begun() -> None:
    lane, gate, begun = Lane(1), threading.Event(), threading.Event()
    first = lane.submit(gate.wait)
    second = lane.submit(begun.set)
    assert second.cancel()
    gate.set()
    first.result()
    lane.submit(lambda: None).result()
    assert not begun.is_set()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads is what is tried here
def test_a_forked_child_has_threads_of_its_own() -> None:
    lane = Lane(2)
    assert lane.submit(os.getpid).result() == os.getpid()
    child = os.fork()
    if child == 0:
        os._exit(0 if lane.submit(os.getpid).result() == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
