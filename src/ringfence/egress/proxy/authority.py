"""The authority of one run: shows a box certificates for the hosts it was granted, and is forgotten with the run.

Its key is made in this process and never written anywhere. It vouches for the names of its own run alone, and says so
in its certificate, so that whoever got hold of it could pass for no host that the run could not reach anyway.
"""

from __future__ import annotations

import datetime
import os
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ringfence.capability.host import ANY
from ringfence.errors import Unavailable
from ringfence.operation.target import is_address

if TYPE_CHECKING:
    from cryptography import x509

_LIFE: Final = datetime.timedelta(days=7)
_SKEW: Final = datetime.timedelta(hours=1)
_MOST_LEAVES: Final = 128
"""Kept at a time: below a granted suffix a guest can think of any number of names."""
_LONGEST_COMMON_NAME: Final = 64


class Authority:
    """Makes certificates for hosts; `certificate` is what a box has to trust to believe them."""

    def __init__(self, hosts: Iterable[str]) -> None:
        """Vouch for `hosts`, patterns as capabilities have them, and for nobody else.

        Raises:
            Unavailable: The library that makes certificates is not installed.
        """
        self._x509, ec, self._hashes, self._serialization = _library()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key_pem: bytes = self._leaf_key.private_bytes(
            self._serialization.Encoding.PEM,
            self._serialization.PrivateFormat.PKCS8,
            self._serialization.NoEncryption(),
        )
        self._name = self._named("Ringfence, for one run")
        self._lock = threading.Lock()
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()
        self.certificate: bytes = self._own_certificate(tuple(hosts))

    def __repr__(self) -> str:
        """Show nothing of its keys."""
        return "Authority()"

    @property
    def minted(self) -> tuple[str, ...]:
        """The hosts that certificates are kept for."""
        return tuple(self._contexts)

    def context_for(self, host: str) -> ssl.SSLContext:
        """Return what speaks TLS to a client in the place of `host`; whoever calls has judged the host.

        Takes a moment for a new one; may be called from any thread.
        """
        with self._lock:
            context = self._contexts.pop(host, None) or _server_side(self._leaf(host) + self._leaf_key_pem)
            self._contexts[host] = context
            if len(self._contexts) > _MOST_LEAVES:
                self._contexts.popitem(last=False)
            return context

    def _own_certificate(self, hosts: tuple[str, ...]) -> bytes:
        x509, public = self._x509, self._key.public_key()
        usage = x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        draft = (
            self._draft(self._name, public)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        if ANY not in hosts:
            draft = draft.add_extension(x509.NameConstraints(self._names(hosts), None), critical=True)
        return self._signed(draft)

    def _leaf(self, host: str) -> bytes:
        x509 = self._x509
        common = self._named(host) if len(host) <= _LONGEST_COMMON_NAME else x509.Name([])
        draft = (
            self._draft(common, self._leaf_key.public_key())
            .add_extension(x509.SubjectAlternativeName([self._general(host)]), critical=not len(common.rdns))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return self._signed(draft)

    def _draft(self, subject: x509.Name, public: Any) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder: x509.CertificateBuilder = (
            self._x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(self._x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _LIFE)
        )
        return builder

    def _signed(self, draft: x509.CertificateBuilder) -> bytes:
        certificate = draft.sign(self._key, self._hashes.SHA256())
        return certificate.public_bytes(self._serialization.Encoding.PEM)

    def _named(self, common: str) -> x509.Name:
        name: x509.Name = self._x509.Name([self._x509.NameAttribute(self._x509.NameOID.COMMON_NAME, common)])
        return name

    def _general(self, host: str) -> x509.GeneralName:
        import ipaddress

        if is_address(host):
            address: x509.GeneralName = self._x509.IPAddress(ipaddress.ip_address(host))
            return address
        name: x509.GeneralName = self._x509.DNSName(host)
        return name

    def _names(self, hosts: Iterable[str]) -> list[x509.GeneralName]:
        """Return the names of a constraint, in which a name stands for itself and all below it."""
        import ipaddress

        addresses = [self._x509.IPAddress(ipaddress.ip_network(host)) for host in hosts if is_address(host)]
        names = [self._x509.DNSName(host.removeprefix("*.")) for host in hosts if not is_address(host)]
        # of a kind that nothing is permitted of, everything would be
        names = names or [self._x509.DNSName("invalid")]
        addresses = addresses or [self._x509.IPAddress(ipaddress.ip_network("0.0.0.0/32"))]
        return [*names, *addresses]


def _library() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise Unavailable(
            "the policy has TLS intercepted, and the library that makes certificates for it is not installed",
            reason="extra_missing",
            fix="pip install 'ringfence[intercept]'",
        ) from None
    return x509, ec, hashes, serialization


def _server_side(chain: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    # the library reads from files alone; this one is memory without a name, and gone when it has been read
    memory = os.memfd_create("leaf", os.MFD_CLOEXEC)
    try:
        os.write(memory, chain)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context


def host_side(ca_file: str | None = None) -> ssl.SSLContext:
    """Return what speaks TLS to hosts: they have to show that they have their name, to this host's own authorities."""
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # with it, whoever cuts a connection ends an answer as its host would; older libraries have none
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.set_alpn_protocols(["http/1.1"])
    return context
