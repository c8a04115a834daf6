"""On whose behalf a call is made: the tenant whose files and budgets it may touch, and who acts for that tenant."""

from __future__ import annotations

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.pattern import pattern

LOCAL = "local"
"""The tenant, and the subject, of whoever uses the library or the command directly."""
_TENANT = pattern(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_MOST_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the door knows it: a request never says so itself.

    A tenant is a directory too, and so one lower-case name that no file system takes for another.
    """

    tenant: str = LOCAL
    subject_id: str = LOCAL

    def __post_init__(self) -> None:
        check_tenant(self.tenant)
        subject: object = self.subject_id
        if not isinstance(subject, str) or not 0 < len(subject) <= _MOST_CHARACTERS or not subject.isprintable():
            raise InvalidRequest(
                f"subject_id must be 1 to {_MOST_CHARACTERS} printable characters", reason="invalid_name"
            )


def check_tenant(tenant: object) -> None:
    """Refuse a name that no tenant can have.

    Raises:
        InvalidRequest: It is not 1 to 63 lower-case letters, digits, `-` or `_`, beginning with one of the first two.
    """
    if not isinstance(tenant, str) or _TENANT.match(tenant) is None:
        raise InvalidRequest(
            f"{str(tenant)[:100]!a} is no name of a tenant: 1 to 63 lower-case letters, digits, '-' or '_'",
            reason="invalid_name",
        )


NOBODY_ELSE = Caller()
"""The one who uses the library or the command directly."""
