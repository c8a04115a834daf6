"""Where a caller presents a signed grant: it is checked before every operation, and used up when its call is over."""

from __future__ import annotations

from ringfence.authority.credential import Credential, ProposedCall
from ringfence.authority.grant import Grant
from ringfence.dataclass import replace
from ringfence.errors import Denied
from ringfence.grants.verifier import GrantVerifier
from ringfence.ports import CallRegister


class GrantDoor:
    """Admits tokens for the calls of one process."""

    def __init__(self, verifier: GrantVerifier, calls: CallRegister, audience: str = "") -> None:
        """`calls` is the register that the verifier asks too; `audience` is what this deployment is called."""
        self._verifier = verifier
        self._calls = calls
        self._audience = audience

    def present(self, token: str, *, tenant: str, subject_id: str, call_id: str) -> Presented:
        """Take a token for one call; who calls is said by the door, never by the token."""
        call = ProposedCall(tenant, subject_id, "", call_id, self._audience)
        return Presented(self._verifier, self._calls, token, call)


class Presented:
    """A token in use by one call."""

    def __init__(self, verifier: GrantVerifier, calls: CallRegister, token: str, call: ProposedCall) -> None:
        self._verifier = verifier
        self._calls = calls
        self._token = token
        self._call = call
        self._admitted: Credential | None = None
        self._over = False

    def grant_for(self, tool: str) -> Grant:
        """Return what the token gives the next operation, and count it.

        Raises:
            Denied: It is not good for this call, or no longer.
            QuotaExceeded: It allows no more operations.
            Unavailable: It cannot be checked here; nothing may run.
        """
        if self._over:  # also where nothing was done in it, so that the register knows of no call
            raise _call_is_over()
        self._admitted = self._verifier.admit(self._token, replace(self._call, tool_name=tool))
        self._calls.spend(self._admitted)
        return self._admitted.grant

    def still_good(self) -> None:
        """Check again what can have changed since an operation was admitted, which is counted once.

        Raises:
            Denied: It was revoked, its time is over, or its call is.
        """
        if self._over or self._admitted is None:
            raise _call_is_over()
        self._verifier.check(self._admitted, replace(self._call, tool_name=self._admitted.grant.tool_name))

    @property
    def call_id(self) -> str:
        """The call that it is presented for."""
        return self._call.call_id

    @property
    def who(self) -> tuple[str, str]:
        """The tenant and the subject that present it, whatever it says itself."""
        return self._call.tenant, self._call.subject_id

    def close(self) -> None:
        """End the call: whoever presents the grant again replays it."""
        self._over = True
        if self._admitted is not None:
            self._calls.close(self._admitted)


def _call_is_over() -> Denied:
    return Denied("the call this grant was presented for is over", reason="replayed")
