"""Opens the way out of a box for one run: what its profile grants and it asks for, and not a byte beyond its budget."""

from __future__ import annotations

from collections.abc import Iterable

from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Gate, Proxy
from ringfence.egress.proxy.rules import rules_for
from ringfence.errors import IsolationUnavailable
from ringfence.executors.shares import shares
from ringfence.ports import ExecCtx, Worker


class WaysOut:
    """The proxy of an engine, as the executors use it."""

    def __init__(self, proxy: Proxy, nat64: Iterable[str] = ()) -> None:
        """`nat64` are the prefixes behind which this network reaches IPv4."""
        self._proxy = proxy
        self._nat64 = tuple(nat64)

    @property
    def proxy(self) -> Proxy:
        """The proxy itself, for what has a door and rules of its own."""
        return self._proxy

    def open(self, worker: Worker, ctx: ExecCtx, domains: Iterable[str]) -> Gate:
        """Let the guest of `worker` reach `domains`, as far as the profile goes, until the gate is closed.

        Raises:
            IsolationUnavailable: The box has no door; nothing ran.
            Unavailable: There is no room for it; nothing ran.
        """
        if worker.door is None:
            raise IsolationUnavailable(
                f"a {worker.backend} box has no way out to the proxy", fix="use native, docker or gvisor for it"
            )
        limits = ctx.profile.limits
        ledger = Ledger(limits.max_bytes_in, shares(ctx.most_output, limits)[1])
        return self._proxy.open(worker.door, rules_for(ctx.profile, domains, nat64=self._nat64), ledger)

    def close(self) -> None:
        """End every connection."""
        self._proxy.close()
