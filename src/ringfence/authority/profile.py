"""The profile: what one run may do, after every authority has had its say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringfence.capability.limits import Limits


class SecurityMode(StrEnum):
    """How much the declared risk may lower the isolation."""

    PERMISSIVE = "permissive"
    STRICT = "strict"


class Isolation(StrEnum):
    """Which backend a caller asks for; `AUTO` is the strongest this machine gives by default."""

    AUTO = "auto"
    NATIVE = "native"
    BWRAP = "bwrap"


@dataclass(frozen=True, slots=True)
class Profile:
    """The resolved bounds of one run."""

    limits: Limits = Limits()
    security_mode: SecurityMode = SecurityMode.STRICT
    isolation: Isolation = Isolation.AUTO
    require_cgroups: bool = False
