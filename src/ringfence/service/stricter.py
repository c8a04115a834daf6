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
    isolation = _choice(Isolation, overrides.get("isolation"), "unknown_isolation")
    mode = _choice(SecurityMode, overrides.get("security_mode"), "unknown_security_mode")
    if mode is not None and mode is not SecurityMode.STRICT:
        raise Denied("security_mode permissive is for whoever runs the service to choose", reason="not_granted")
    return Stricter(
        None if isolation is Isolation.AUTO else isolation,
        require_cgroups=bool(overrides.get("require_cgroups")),
        role=overrides.get("role"),
    )


def _choice(kind: type[StrEnum], given: str | None, reason: str) -> Any:
    if given is None:
        return None
    try:
        return kind(given)
    except ValueError:
        raise InvalidRequest(f"{given[:100]!a} is none of {', '.join(kind)}", reason=reason) from None
