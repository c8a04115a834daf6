"""An internet behind safe retrieval: one server on loopback, and names that lead to it wherever a test says that it is.

Every request goes through the real pipeline to real sockets; only names and the addresses behind them are made up, so
that a public address can be had at all. `test_retrieval_lab.py` does the same on a wire.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_web import Names, Server, Wire, authority

from ringfence import load_policy
from ringfence.capability.limits import MIB, Limits
from ringfence.egress.settings import NetSettings
from ringfence.errors import RingfenceError
from ringfence.executors.net import NetExecutor
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.operation.brokered import NetHttp
from ringfence.outcome import BrokerOutcome
from ringfence.testing import MemorySink, orchestrator_over, standard_profile

READING = """
network:
  default: safe_retrieval
  allowlist: {enabled: true, domains: ["*", "93.184.216.34", "[2606:2800::34]"]}
"""
LISTED = """
network:
  default: allowlist
  allowlist: {enabled: true, domains: [web.example.com, "*.example.net"]}
policies: {default: {allowed_methods: [GET, HEAD, POST, PUT]}}
"""
PRIVATE = """
network:
  default: allowlist
  allowlist: {enabled: true, domains: ["*", "10.0.0.5", "127.0.0.1", "169.254.169.254"]}
  denylist: {enabled: true, networks: ["192.168.0.0/16"]}
"""
LIMITS = Limits(wall_seconds=10, max_bytes_in=4 * MIB)


class Internet:
    """One server, and names that lead to it wherever a test says that it is."""

    def __init__(self, server: Server, ca_file: Path | None = None) -> None:
        self.server, self.names, self.wire = server, Names(), Wire(server, ca_file)
        self.evidence = MemorySink()
        executor = NetExecutor(NetSettings(dial=self.wire, lookup=self.names))
        self._orchestrator = orchestrator_over(executor, evidence=self.evidence)

    async def fetch(
        self, url: str, method: str = "GET", *, policy: str = READING, agreed: bool = False, limits: Limits = LIMITS,
        **brought: Any,
    ) -> BrokerOutcome:  # fmt: skip
        operation = NetHttp(method, url, **brought)
        profile = standard_profile(operation, limits, load_policy(policy.encode()))
        consent = Consent(Source.CALL, request_hash(operation), approver="test") if agreed else None
        return await self._orchestrator.run(operation, profile, consent=consent)

    async def refusal(self, url: str, *args: Any, **options: Any) -> RingfenceError:
        with pytest.raises(RingfenceError) as refused:
            await self.fetch(url, *args, **options)
        return refused.value

    async def led(self, to: str, **options: Any) -> RingfenceError:
        """Have a public server redirect to `to`, and return the refusal."""
        from urllib.parse import quote

        return await self.refusal(f"http://web.example.com/to?to={quote(to, safe='')}", **options)


@pytest.fixture
def net() -> Iterator[Internet]:
    """Give a test an internet of its own."""
    server = Server()
    yield Internet(server)
    server.close()


@pytest.fixture
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    """Give one whose server shows a certificate, of an authority that the requests know."""
    directory = tmp_path_factory.getbasetemp() / "authority"
    directory.mkdir(exist_ok=True)
    ca_file, shown = authority(directory)
    server = Server(tls=shown)
    yield Internet(server, ca_file)
    server.close()
