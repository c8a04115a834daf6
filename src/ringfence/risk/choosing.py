"""Which kind of box a call gets: the one its caller named, else the weakest kind that is as strong as the call needs.

| the call needs | `auto` tries, in this order |
|---|---|
| up to container | native, bubblewrap, docker |
| gvisor | gVisor |
| microvm | nothing here is one |

Whether a box really is what its kind promises is observed on it before anything runs in it (`risk/isolation.py`).
"""

from __future__ import annotations

from functools import lru_cache

from ringfence.authority.levels import IsolationLevel
from ringfence.authority.profile import Isolation
from ringfence.errors import IsolationUnavailable

_AT_MOST = {
    Isolation.NATIVE: IsolationLevel.CONTAINER,
    Isolation.BWRAP: IsolationLevel.CONTAINER,
    # an engine may run containers under gVisor; what it did is seen on the container
    Isolation.DOCKER: IsolationLevel.GVISOR,
    Isolation.GVISOR: IsolationLevel.GVISOR,
    Isolation.AIO: IsolationLevel.OS,
}
_UNOBSERVED = (
    "leave out `aio_pool`; or, for what is not critical, accept a box that nobody here observed with "
    "security_mode='permissive'"
)


def kind_for(asked: Isolation, needed: IsolationLevel) -> Isolation:
    """Return the kind of box for a call; `AUTO` is the first of the usual ones that this machine has.

    Raises:
        IsolationUnavailable: No kind, or not the one that was asked for, can be that strong.
    """
    if needed > IsolationLevel.GVISOR:
        raise IsolationUnavailable(
            f"the call needs isolation of class {needed}, and no box here is a virtual machine",
            fix="lower `isolation` in the policy to gvisor",
        )
    if asked is Isolation.AUTO:
        return Isolation.GVISOR if needed is IsolationLevel.GVISOR else Isolation.AUTO
    if needed > _AT_MOST[asked]:
        raise IsolationUnavailable(
            f"the call needs isolation of class {needed}, and {asked} gives {_AT_MOST[asked]} at most",
            fix=_UNOBSERVED if asked is Isolation.AIO else f"leave out `isolation`, or ask for {Isolation.GVISOR}",
        )
    return asked


@lru_cache(maxsize=256)
def why(asked: Isolation, needed: IsolationLevel, got: str) -> str:
    """Say in a line why a run got the box it got."""
    if asked is not Isolation.AUTO:
        return f"{got}: the caller asked for it; the call needs {needed}"
    if needed is IsolationLevel.GVISOR:
        return f"{got}: the call needs {needed}"
    return f"{got}: the first that starts here; the call needs {needed}"
