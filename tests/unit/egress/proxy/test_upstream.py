"""This host is not reached from a box, by whatever address it is called."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringfence.capability.capabilities import Capabilities
from ringfence.egress.addresses import AddressRules
from ringfence.egress.proxy import upstream
from ringfence.egress.proxy.refusal import Refusal
from ringfence.egress.proxy.rules import Rules
from ringfence.egress.proxy.upstream import Dialler
from ringfence.operation.target import Target

OWN = "93.184.216.34"
INSIDE = {"64:ff9b::5db8:d822": (), "2a00:1450:64::5db8:d822": ("2a00:1450:64::/96",)}


def nowhere(_: socket.AddressFamily) -> socket.socket:
    raise AssertionError("somebody was dialled")


@pytest.mark.parametrize(("address", "more"), INSIDE.items())
async def test_an_address_that_carries_this_hosts_own_is_not_dialled(
    address: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_of(asked: Iterable[str]) -> frozenset[str]:
        return frozenset({OWN} & set(asked))

    monkeypatch.setattr(upstream, "own_of", own_of)
    rules = Rules(Capabilities(()), addresses=AddressRules(nat64=("64:ff9b::/96", *more)))
    with ThreadPoolExecutor(1) as threads:
        dialler = Dialler(threads, lambda _: (address,), nowhere)
        with pytest.raises(Refusal, match="own"):
            await dialler.reach(Target("https", "a.example", 443, "/"), rules)


async def test_an_address_with_a_zone_is_refused_as_an_address() -> None:
    with ThreadPoolExecutor(1) as threads:
        dialler = Dialler(threads, lambda _: ("fe80::1%lo",), nowhere)
        with pytest.raises(Refusal) as refused:
            await dialler.reach(Target("https", "a.example", 443, "/"), Rules(Capabilities(())))
        assert refused.value.reason == "address"
