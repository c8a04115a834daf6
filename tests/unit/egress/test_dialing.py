"""Connections of the way out end when their time does."""

from __future__ import annotations

import socket

import pytest

from ringfence.egress.dialing import Dialer
from ringfence.errors import TimedOut


async def test_a_connection_that_takes_too_long_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.raises(TimedOut, match="in time") as refused:
        await Dialer()("127.0.0.1", listening.getsockname()[1], "a.com", 0)
    assert refused.value.reason == "connect_timeout"
