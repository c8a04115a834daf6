"""An external quota service decides, and whatever it does instead of deciding, nothing runs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest
from tests.unit.budgets.accounts import TENANT, chain_of, used
from tests.unit.budgets.quota_service import Service, running, send

from ringfence.budgets.decide import Standing
from ringfence.budgets.port import BudgetMeter
from ringfence.budgets.remote import RemoteMeter
from ringfence.budgets.reservation import MeterSource
from ringfence.budgets.scope import UNBOUNDED
from ringfence.capability.budget import Budget
from ringfence.errors import InvalidRequest, QuotaExceeded, TimedOut, Unavailable

CHAIN = chain_of(Budget(calls=2, cpu_ms=100))
ONE = Budget(calls=1, cpu_ms=10)


@pytest.fixture
def service() -> Iterator[Service]:
    with running() as service:
        yield service


def test_it_is_a_meter() -> None:
    meter: BudgetMeter = RemoteMeter("https://quota.example")
    assert meter.waits
    assert meter.recover() == ()


def test_the_service_holds_charges_and_refuses(service: Service) -> None:
    meter = RemoteMeter(service.url, token="s3cret")
    held = meter.reserve(CHAIN, ONE, "ex/1")
    assert held.amounts == ONE
    settlement = meter.settle(held, used(MeterSource.SAMPLED, calls=1, cpu_ms=4))
    assert (settlement.charged, settlement.source) == (Budget(calls=1, cpu_ms=4), MeterSource.SAMPLED)
    assert meter.release(meter.reserve(CHAIN, ONE, "ex2")).was_open
    meter.settle(meter.reserve(CHAIN, ONE, "ex3"), used(calls=1, cpu_ms=0))
    with pytest.raises(QuotaExceeded) as refused:
        meter.reserve(CHAIN, ONE, "ex4")
    assert (refused.value.reason, refused.value.details) == (
        "calls",
        {"scope": "tenant", "name": "acme", "kind": "calls", "limit": 2, "observed": 2, "asked": 1},
    )
    assert service.meter.standing(TENANT, "calls") == Standing(2, 0)
    assert {token for _, token in service.asked} == {"Bearer s3cret"}
    assert service.asked[1][0] == "/reservations/ex%2F1/settle"


def test_less_is_given_where_less_is_enough(service: Service) -> None:
    meter = RemoteMeter(service.url)
    assert meter.reserve(CHAIN, Budget(cpu_ms=500), "ex", least=Budget(cpu_ms=1)).amounts == Budget(cpu_ms=100)


def test_the_service_is_asked_even_where_our_own_policy_bounds_nothing(service: Service) -> None:
    RemoteMeter(service.url).reserve(UNBOUNDED, ONE, "ex")
    assert [path for path, _ in service.asked] == ["/reservations"]


def test_settling_is_repeated_and_charged_once(service: Service) -> None:
    meter = RemoteMeter(service.url)
    held = meter.reserve(CHAIN, ONE, "ex")
    lost = threading.Event()

    def lose_the_first_answer(handler: BaseHTTPRequestHandler, path: str) -> bool:
        if lost.is_set() or not path.endswith("/settle"):
            return False
        lost.set()
        service.answer(path, {"used": {"calls": 1, "cpu_ms": 3}, "source": "cgroup"})
        handler.close_connection = True
        return True

    service.misbehave = lose_the_first_answer
    assert not meter.settle(held, used(calls=1, cpu_ms=3)).was_open
    assert service.meter.standing(TENANT, "cpu_ms") == Standing(3, 0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"amounts": {}}'),
        (200, b'{"amounts": {"calls": 1}}'),
        (200, b'{"amounts": {"calls": 1, "cpu_ms": "unlimited"}}'),
        (200, b'{"amounts": {"calls": 1, "cpu_ms": 9}}'),
        (200, b'{"amounts": {"calls": 1, "cpu_ms": 11}}'),
        (200, b'{"amounts": {"calls": 1, "cpu_ms": 10, "gpu_ms": 5}}'),
        (200, b'{"amounts": {"calls": true, "cpu_ms": 10}}'),
        (200, b"[" * 60_000),
        (200, b'{"amounts": {"calls": 1, "cpu_ms": 10}}' + b" " * 70_000),
        (201, b'{"amounts": {"calls": 1, "cpu_ms": 10}}'),
        (204, b""),
        (302, b""),
        (400, b"{}"),
        (500, b"{}"),
    ],
)
def test_whatever_is_not_exactly_a_yes_runs_nothing_and_is_given_back(
    service: Service, status: int, body: bytes
) -> None:
    def answer(handler: BaseHTTPRequestHandler, path: str) -> bool:
        if path == "/reservations":
            send(handler, status, body, Location=f"{service.url}/elsewhere")
            return True
        return False

    service.misbehave = answer
    with pytest.raises(Unavailable):
        RemoteMeter(service.url).reserve(CHAIN, ONE, "ex")
    assert [path for path, _ in service.asked] == ["/reservations", "/reservations/ex/release"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"kind": "no such kind"}', b'{"kind": 7}', b'{"kind":"calls","limit":"x"}']
)
def test_a_refusal_that_says_nothing_is_still_a_refusal(service: Service, body: bytes) -> None:
    def refuse(handler: BaseHTTPRequestHandler, path: str) -> bool:
        send(handler, 429, body)
        return True

    service.misbehave = refuse
    with pytest.raises(QuotaExceeded) as refused:
        RemoteMeter(service.url).reserve(CHAIN, ONE, "ex")
    assert refused.value.reason == "budget"


def test_a_service_that_does_not_answer_in_time_runs_nothing(service: Service) -> None:
    def hang(handler: BaseHTTPRequestHandler, path: str) -> bool:
        service.hang.wait()
        return True

    service.misbehave = hang
    with pytest.raises(TimedOut) as error:
        RemoteMeter(service.url, timeout_seconds=0.05).reserve(CHAIN, ONE, "ex")
    assert error.value.reason == "read_timeout"


def test_a_service_that_is_not_there_runs_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable) as error:
        RemoteMeter(f"http://127.0.0.1:{port}").reserve(CHAIN, ONE, "ex")
    assert error.value.reason == "connect_failed"


def test_a_service_that_speaks_something_else_runs_nothing(service: Service) -> None:
    def babble(handler: BaseHTTPRequestHandler, path: str) -> bool:
        handler.wfile.write(b"SSH-2.0-nonsense\r\n")
        handler.close_connection = True
        return True

    service.misbehave = babble
    with pytest.raises(Unavailable):
        RemoteMeter(service.url).reserve(CHAIN, ONE, "ex")


def test_a_settlement_nobody_takes_is_told_and_the_service_still_holds_all_of_it(service: Service) -> None:
    meter = RemoteMeter(service.url)
    held = meter.reserve(CHAIN, ONE, "ex")

    def refuse(handler: BaseHTTPRequestHandler, path: str) -> bool:
        send(handler, 500, json.dumps({"charged": {}, "was_open": True}).encode())
        return True

    service.misbehave = refuse
    with pytest.raises(Unavailable):
        meter.settle(held, used(calls=1))
    assert len(service.asked) == 4
    assert service.meter.standing(TENANT, "calls") == Standing(0, 1)


def test_a_proxy_of_the_environment_is_not_asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert RemoteMeter(service.url).reserve(CHAIN, ONE, "ex").amounts == ONE


@pytest.mark.parametrize("url", ["http://quota.example", "ftp://127.0.0.1", "file:///etc/passwd", "quota.example", ""])
def test_only_https_or_this_machine_is_trusted_with_budgets(url: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        RemoteMeter(url)
    assert error.value.reason == "invalid_url"
