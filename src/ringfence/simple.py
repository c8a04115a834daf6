"""`DockerSimpleSandbox` of the second source document: a container of its own for every execution, and none in wait."""

from __future__ import annotations

from typing import Any

from ringfence.authority.profile import Isolation
from ringfence.errors import InvalidRequest
from ringfence.facade import SandboxManager

_FIXED = ("isolation", "pool_size", "url")


class DockerSimpleSandbox(SandboxManager):
    """A manager whose every run starts a container, without a network and with bounded memory, and ends with it.

    The session's work directory is in it, and what a run changes there is the session's. Everything else is as with
    every manager: the same law before a run, the same proof after it. Slower than a pool by the start of a container.
    """

    def __init__(self, session_id: str | None = None, **settings: Any) -> None:
        """Take what `SandboxManager` takes, but for the kind of box and how many are parked.

        Raises:
            InvalidRequest: An argument has no such value, or would make it another kind of sandbox.
        """
        for name in _FIXED:
            if name in settings:
                raise InvalidRequest(
                    f"a DockerSimpleSandbox has no {name}: it starts a container for every run",
                    reason="invalid_value",
                    fix="use SandboxManager",
                )
        super().__init__(session_id, isolation=Isolation.DOCKER, pool_size=0, **settings)
