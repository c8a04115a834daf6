"""Cgroups that the kernel does not let go of are tried again, whatever it says about one of them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from ringfence.capability.limits import Limits
from ringfence.isolation.linux.cgroup_contract import CgroupHost
from ringfence.isolation.linux.workshop import Workshop


class Cgroup:
    """One whose removal fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self._failures = failures
        self.gone = False

    def entrances(self) -> tuple[int, ...]:
        return ()

    def let_go(self) -> None:
        pass

    def remove(self) -> bool:
        if self._failures:
            self._failures -= 1
            raise OSError("the kernel says no")
        self.gone = True
        return True


class Host:
    """Gives out the cgroups of a test, in their order."""

    def __init__(self, *cgroups: Cgroup) -> None:
        self.report = self
        self.kind = "v2"
        self.closed = False
        self._left = list(cgroups)

    def create(self, *_: object) -> Cgroup:
        return self._left.pop(0)

    def close(self) -> bool:
        self.closed = True
        return True


def workshop_of(host: Host) -> Workshop:
    known: Future[CgroupHost] = Future()
    known.set_result(cast("Any", host))
    return Workshop(Limits(), known)


def test_a_removal_that_fails_costs_no_other_its_own() -> None:
    cgroups = Cgroup(failures=2), Cgroup(), Cgroup()
    workshop = workshop_of(Host(*cgroups))
    places = [workshop.reserve(str(number)) for number in range(3)]
    workshop.give_up(places[0])
    with pytest.raises(OSError, match="says no"):
        workshop.give_up(places[1])
    with pytest.raises(OSError, match="says no"):
        workshop.give_up(places[2])
    assert workshop.tidy()
    assert [cgroup.gone for cgroup in cgroups] == [True] * 3


def test_what_fails_to_be_tidied_up_is_tried_again() -> None:
    cgroup = Cgroup(failures=1)
    workshop = workshop_of(Host(cgroup))
    workshop.give_up(workshop.reserve("0"))
    with pytest.raises(OSError, match="says no"):
        workshop.tidy()
    assert workshop.tidy()
    assert cgroup.gone


def test_the_last_burial_ends_the_workshop_also_when_an_earlier_one_fails() -> None:
    host = Host(Cgroup(failures=1), Cgroup())
    workshop = workshop_of(host)
    places = [workshop.reserve(str(number)) for number in range(2)]
    workshop.close()
    workshop.give_up(places[0])
    with pytest.raises(OSError, match="says no"):
        workshop.give_up(places[1])
    assert host.closed
