"""Lends a run the secrets it asked for: what enters its box, what is masked of it, and what is written down."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from ringfence.capability.host import covers
from ringfence.dataclass import dataclass, field
from ringfence.egress.overrides import as_servers_read
from ringfence.egress.proxy.swap import Loan
from ringfence.errors import CapabilityBlocked, InvalidRequest, Unavailable
from ringfence.masking import Masks, leaves
from ringfence.operation.secret import SecretAsk, Way, references
from ringfence.operation.target import Target
from ringfence.ports import ExecCtx
from ringfence.secrets.entry import Entry
from ringfence.secrets.registry import Registry

LEASED: Final = "secret.leased"
REVOKED: Final = "secret.revoked"
FILES: Final = "secrets"
"""The directory under `/workspace/inputs` in which a secret that is a file lies."""
_PLACEHOLDER: Final = "rfsecret_"
_PIECES: Final = frozenset({"range", "if-range", "request-range"})


@dataclass(frozen=True, slots=True)
class Lease:
    """That one run has one secret within reach, as evidence tells it: a name and a version, never a value."""

    name: str
    way: Way
    version: int
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a record has it."""
        return {
            "secret": self.name,
            "way": str(self.way),
            "secret_version": self.version,
            "secret_fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Lent:
    """What one run is given; its text form has no value."""

    leases: tuple[Lease, ...] = ()
    masks: Masks = field(default_factory=lambda: Masks({}))
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    inputs: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    loans: tuple[Loan, ...] = ()
    """What the proxy puts into requests; the box has placeholders."""


def lend(registry: Registry, tenant: str, asks: Iterable[SecretAsk]) -> Lent:
    """Fetch what is asked for, for this one run; may block.

    Raises:
        CapabilityBlocked: The secret may not be used in that way.
        InvalidRequest: There is no such secret.
        Unavailable: Its value cannot be had now.
    """
    leases: list[Lease] = []
    env: dict[str, str] = {}
    inputs: dict[str, bytes] = {}
    loans: list[Loan] = []
    values: dict[str, bytes] = {}
    for ask in asks:
        if ask.lasting:  # for one run would be less than a person was asked for
            raise CapabilityBlocked("nothing here keeps a secret for a whole conversation", reason="executor_disabled")
        entry, value = registry.value(tenant, ask.name)
        if ask.way not in entry.ways:
            raise CapabilityBlocked(
                f"the secret {ask.name} may not be given as {ask.way}, but as {', '.join(sorted(entry.ways))}",
                reason="secret_way",
                fix=f"ringfence secret set {ask.name} --way {ask.way}",
            )
        match ask.way:
            case Way.ENV:
                env[ask.label] = _variable(ask.name, value)
            case Way.FILE:
                inputs[f"{FILES}/{ask.label}"] = value
            case Way.BROKER:
                loan = _loan(registry, tenant, entry, value)
                env[_variable_name(ask)] = loan.placeholder
                loans.append(loan)
        if ask.way is not Way.BROKER:  # what a box never holds it cannot show, and masking it would confirm a guess
            values[ask.name] = value
        leases.append(Lease(ask.name, ask.way, entry.version, registry.fingerprint(tenant, ask.name, value)))
    return Lent(tuple(leases), _masks(values), env, inputs, tuple(loans))


def _loan(registry: Registry, tenant: str, entry: Entry, value: bytes) -> Loan:
    """Return what has the proxy put a secret into the requests of one run."""
    placeholder = _PLACEHOLDER + secrets.token_hex(20)
    return Loan(
        name=entry.name,
        placeholder=placeholder,
        value=_header_text(entry.name, value),
        is_bound=partial(_is_bound_once, entry.hosts),
        is_known_to=partial(_is_named, entry.hosts),
        is_valid=partial(_is_as_lent, registry, tenant, entry),
        masks=_masks({entry.name: value}, placeholder.encode(), blind=True),
    )


def _is_as_lent(registry: Registry, tenant: str, entry: Entry) -> bool:
    """Whether a secret is still there as it was: one that was set anew is another, perhaps for other hosts."""
    try:
        return registry.find(tenant, entry.name) == entry
    except Unavailable:
        return False


def _variable_name(ask: SecretAsk) -> str:
    if not ask.label.isidentifier():
        raise InvalidRequest(
            f"secret {ask.name}: no variable can be called that",
            reason="invalid_secret",
            fix=f"write {ask.name}=broker:VARIABLE",
        )
    return ask.label


def lend_to_request(registry: Registry, tenant: str, where: Target, headers: Mapping[str, str]) -> tuple[Lent, str]:
    """Fetch the one secret that a request refers to, if it may go where the request goes; return it with its value.

    Raises:
        CapabilityBlocked: It may not be put in, the way there can be overheard, it is not bound to that host alone, or
            a part of the answer is asked for.
        InvalidRequest: There is no such secret, or the request refers to several.
        Unavailable: Its value cannot be had now.
    """
    names = references(headers)
    if len(names) != 1:
        raise InvalidRequest("a request carries one secret at most", reason="invalid_secret")
    if not _PIECES.isdisjoint(map(as_servers_read, headers)):  # a part of an answer may hold a part of the value
        raise CapabilityBlocked(
            "a request that carries a secret asks for whole answers", reason="secret_way", fix="leave Range out"
        )
    entry, value = registry.value(tenant, names[0])
    if Way.BROKER not in entry.ways:
        raise _not_there(entry.name, f"may not be put into requests, but is given as {', '.join(sorted(entry.ways))}")
    if where.scheme != "https":
        raise _not_there(entry.name, "is put into nothing that can be read on its way; use https")
    if not _is_bound_once(entry.hosts, where):
        raise _not_there(entry.name, f"is not bound to {where.host} by exactly one of its hosts")
    lease = Lease(entry.name, Way.BROKER, entry.version, registry.fingerprint(tenant, entry.name, value))
    return Lent((lease,), _masks({entry.name: value}, blind=True)), _header_text(entry.name, value)


def _header_text(name: str, value: bytes) -> str:
    text = _variable(name, value)
    if not text.isascii() or not text.isprintable():
        raise _not_there(name, "is no text that a header can hold")
    return text


def _is_bound_once(hosts: Iterable[str], where: Target) -> bool:
    return sum(_is_bound(host, where) for host in hosts) == 1


def _is_bound(host: str, where: Target) -> bool:
    _, colon, port = host.partition(":")
    return where.port == (int(port) if colon else 443) and _is_named((host,), where.host)


def _is_named(hosts: Iterable[str], name: str) -> bool:
    return any(covers(host.partition(":")[0], name) for host in hosts)


def _not_there(name: str, why: str) -> CapabilityBlocked:
    return CapabilityBlocked(f"the secret {name} {why}", reason="secret_way", fix="ringfence secret set … --host HOST")


def record_of(lease: Lease, ctx: ExecCtx, number: int) -> dict[str, Any]:
    """Return the record that an execution has a secret within reach: by its name and version."""
    return {
        **lease.to_json(),
        "type": LEASED,
        "envelope_id": f"{ctx.envelope_id}.secret{number}",
        "exec_id": ctx.exec_id,
        "tenant": ctx.profile.tenant,
        "subject_id": ctx.profile.subject_id,
        "call_id": ctx.profile.call_id,
        "time_ms": time.time_ns() // 1_000_000,
    }


def _masks(values: Mapping[str, bytes], shown: bytes | None = None, *, blind: bool = False) -> Masks:
    """Return what hides each value, and every text in it where it is structured, behind its name or `shown`.

    `blind` where nobody who reads the rest has the value.
    """
    found: dict[str, bytes] = {}
    for name, value in values.items():
        for number, leaf in enumerate(leaves(value)):
            found[name if number == 0 else f"{name}#{number}"] = leaf
    return Masks(found, shown, blind=blind)


def _variable(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise CapabilityBlocked(
            f"the secret {name} is no text that a variable can hold", reason="secret_way", fix=f"ask for {name}=file"
        )
    return text
