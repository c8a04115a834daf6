"""A box without a door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ringfence.authority.profile import Profile
from ringfence.egress.proxy.proxy import Proxy
from ringfence.errors import IsolationUnavailable
from ringfence.executors.ways_out import WaysOut
from ringfence.ports import ExecCtx


def test_a_kind_of_box_that_has_no_way_out_is_refused_by_its_name() -> None:
    worker = cast("Any", SimpleNamespace(door=None, backend="docker"))
    with pytest.raises(IsolationUnavailable, match="docker") as refused:
        WaysOut(Proxy()).open(worker, ExecCtx("ex", Profile()), ["example.com"])
    assert "native" in str(refused.value.fix)
