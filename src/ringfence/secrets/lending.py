"""Lends a run the secrets it asked for: what enters its box, what is masked of it, and what is written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from ringfence.errors import CapabilityBlocked
from ringfence.masking import Masks, leaves
from ringfence.operation.secret import SecretAsk, Way
from ringfence.secrets.registry import Registry

LEASED: Final = "secret.leased"
REVOKED: Final = "secret.revoked"
FILES: Final = "secrets"
"""The directory under `/workspace/inputs` in which a secret that is a file lies."""


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
    values: dict[str, bytes] = {}
    for ask in asks:
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
                raise CapabilityBlocked(
                    f"the secret {ask.name} is put in by the proxy, and this run has no network",
                    reason="secret_way",
                    fix=f"ask for {ask.name}=env where it may be given as a variable",
                )
        for number, leaf in enumerate(leaves(value)):
            values[ask.name if number == 0 else f"{ask.name}#{number}"] = leaf
        leases.append(Lease(ask.name, ask.way, entry.version, registry.fingerprint(tenant, ask.name, value)))
    return Lent(tuple(leases), Masks(values), env, inputs)


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
