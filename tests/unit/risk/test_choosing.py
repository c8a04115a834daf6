"""Which kind of box a call gets."""

from __future__ import annotations

import pytest

from ringfence.authority.levels import IsolationLevel
from ringfence.authority.profile import Isolation
from ringfence.errors import IsolationUnavailable
from ringfence.risk.choosing import kind_for, why

UP_TO_CONTAINER = [level for level in IsolationLevel if level <= IsolationLevel.CONTAINER]


@pytest.mark.parametrize("needed", UP_TO_CONTAINER)
def test_auto_takes_the_usual_boxes_for_everything_up_to_a_container(needed: IsolationLevel) -> None:
    assert kind_for(Isolation.AUTO, needed) is Isolation.AUTO


def test_auto_takes_gvisor_where_the_call_needs_it() -> None:
    assert kind_for(Isolation.AUTO, IsolationLevel.GVISOR) is Isolation.GVISOR


@pytest.mark.parametrize("asked", Isolation)
def test_nothing_here_is_a_virtual_machine(asked: Isolation) -> None:
    with pytest.raises(IsolationUnavailable, match="virtual machine"):
        kind_for(asked, IsolationLevel.MICROVM)


@pytest.mark.parametrize("asked", [Isolation.NATIVE, Isolation.BWRAP, Isolation.AIO])
def test_who_asks_for_a_weaker_box_than_the_call_needs_is_refused_and_gets_no_other(asked: Isolation) -> None:
    with pytest.raises(IsolationUnavailable, match="at most"):
        kind_for(asked, IsolationLevel.GVISOR)


@pytest.mark.parametrize("asked", [kind for kind in Isolation if kind is not Isolation.AUTO])
@pytest.mark.parametrize("needed", [IsolationLevel.PROCESS, IsolationLevel.OS])
def test_who_asks_for_a_kind_gets_that_kind(asked: Isolation, needed: IsolationLevel) -> None:
    assert kind_for(asked, needed) is asked


def test_the_result_says_why() -> None:
    container = IsolationLevel.CONTAINER
    assert why(Isolation.AUTO, container, "native") == "native: the first that starts here; the call needs container"
    assert why(Isolation.AUTO, IsolationLevel.GVISOR, "gvisor") == "gvisor: the call needs gvisor"
    assert why(Isolation.DOCKER, container, "docker") == "docker: the caller asked for it; the call needs container"
