"""Opens the way out of a box for one run: what its profile grants and it asks for, and not a byte beyond its budget."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ringfence.authority.profile import Profile
from ringfence.capability.host import host_pattern
from ringfence.egress.proxy.ledger import Ledger
from ringfence.egress.proxy.proxy import Gate, Proxy
from ringfence.egress.proxy.rules import rules_for
from ringfence.errors import IsolationUnavailable
from ringfence.executors.shares import shares
from ringfence.ports import ExecCtx, Worker

if TYPE_CHECKING:
    from ringfence.egress.proxy.inspection import Inspection
    from ringfence.egress.proxy.swap import Loan

BUNDLE: Final = "tls/authorities.pem"
"""Below the inputs of a run whose TLS is opened: whom its programs are to believe."""
TRUST: Final = dict.fromkeys(
    (
        *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"),
        *("PIP_CERT", "npm_config_cafile", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO"),
    ),
    f"/workspace/inputs/{BUNDLE}",
)


class WaysOut:
    """The proxy of an engine, as the executors use it."""

    def __init__(self, proxy: Proxy, nat64: Iterable[str] = (), ca_file: Path | None = None) -> None:
        """`nat64` are the prefixes behind which this network reaches IPv4; `ca_file` is believed instead of its own."""
        self._proxy = proxy
        self._nat64 = tuple(nat64)
        self._ca_file = ca_file

    @property
    def proxy(self) -> Proxy:
        """The proxy itself, for what has a door and rules of its own."""
        return self._proxy

    def inspect(self, profile: Profile, domains: Iterable[str], loans: Iterable[Loan] = ()) -> Inspection:
        """Return what opens the TLS of one run, and carries its secrets; takes a moment.

        Raises:
            Unavailable: The library that makes certificates is not installed; nothing ran, and nothing runs without.
        """
        from ringfence.egress.proxy.authority import Authority  # most runs need none
        from ringfence.egress.proxy.inspection import Inspection
        from ringfence.egress.proxy.swap import Swap

        rules = rules_for(profile, domains, nat64=self._nat64)
        hosts = sorted({host_pattern(getattr(item, "host", "")) for item in rules.allowed.of("net.http")})
        return Inspection(Authority(hosts), _trust(self._ca_file), Swap(loans))

    def open(self, worker: Worker, ctx: ExecCtx, domains: Iterable[str], inspection: Inspection | None = None) -> Gate:
        """Let the guest of `worker` reach `domains`, as far as the profile goes, until the gate is closed.

        With an `inspection` what it says over TLS is read and judged, which the profile has to say.

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
        rules = rules_for(ctx.profile, domains, nat64=self._nat64)
        return self._proxy.open(worker.door, rules, ledger, inspection, tenant=ctx.profile.tenant)

    def close(self) -> None:
        """End every connection."""
        self._proxy.close()


def bundle(inspection: Inspection) -> bytes:
    """Return whom a box is to believe: the authorities of this host, and that of its run."""
    return _roots() + inspection.authority.certificate


@cache
def _trust(ca_file: Path | None) -> ssl.SSLContext:
    from ringfence.egress.proxy.authority import host_side

    return host_side(None if ca_file is None else str(ca_file))


@cache
def _roots() -> bytes:
    paths = ssl.get_default_verify_paths()
    for path in (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt"):
        if path and Path(path).is_file():
            return Path(path).read_bytes().rstrip() + b"\n"
    return b""
