"""What a caller may say of its own box, mode and role: more caution than the service has, never less."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.dataclass import dataclass
from ringfence.errors import Denied, InvalidRequest

if TYPE_CHECKING:
    from ringfence.service.callers import Principal

NAMES: Final = ("isolation", "security_mode", "require_cgroups", "role")


@dataclass(frozen=True, slots=True)
class Stricter:
    """What one request asks for beside its limits; what it does not say is as the service has it."""

    isolation: Isolation | None = None
    require_cgroups: bool = False
    role: str | None = None

    def require_role_of(self, who: Principal) -> None:
        """Pass if the request names no role, or the one that its key was made for.

        Raises:
            Denied: It names another: a role can allow more, so it is not for whoever asks to choose.
        """
        if self.role not in (None, who.role):
            raise Denied(
                "a key acts in the role that it was made for", reason="role", fix="leave out role, or use another key"
            )


NOTHING: Final = Stricter()


def read_stricter(overrides: Mapping[str, Any]) -> Stricter:
    """Read what of `policy_overrides` is about the box, the mode and the role.

    Raises:
        InvalidRequest: There is no such isolation or mode.
        Denied: It asks for less than the service gives everybody.
    """
    isolation = mode = None
    if (box := overrides.get("isolation")) is not None:
        if box not in tuple(Isolation):
            raise InvalidRequest(_none_of(box, Isolation), reason="unknown_isolation")
        isolation = Isolation(box)
    if (asked := overrides.get("security_mode")) is not None:
        if asked not in tuple(SecurityMode):
            raise InvalidRequest(_none_of(asked, SecurityMode), reason="unknown_security_mode")
        mode = SecurityMode(asked)
    if mode is not None and mode is not SecurityMode.STRICT:
        raise Denied("security_mode permissive is for whoever runs the service to choose", reason="not_granted")
    return Stricter(
        None if isolation is Isolation.AUTO else isolation,
        require_cgroups=bool(overrides.get("require_cgroups")),
        role=overrides.get("role"),
    )


def _none_of(given: str, kind: type[StrEnum]) -> str:
    return f"{given[:100]!a} is none of {', '.join(kind)}"
