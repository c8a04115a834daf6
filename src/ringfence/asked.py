"""What a manager asks of the authorities for each of its calls: what its maker said, and what one request adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from ringfence import arguments
from ringfence.authority.layers import Request, read_commit
from ringfence.authority.limit_names import FIELDS, nothing
from ringfence.authority.profile import Isolation
from ringfence.capability.limits import Limits, as_limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import Denied, InvalidRequest
from ringfence.operation import CodeRun, Language, parse_language
from ringfence.operation.secret import read_ask
from ringfence.requests import ExecutionRequest

if TYPE_CHECKING:
    from ringfence.authority.levels import NetMode
    from ringfence.authority.profile import SecurityMode

_DEFAULTS = Limits()
_TIME = frozenset({"wall_seconds"})
_NOTHING_STATED: frozenset[str] = frozenset()
_WITHOUT_PACKAGES = (Language.JAVASCRIPT, Language.TYPESCRIPT)


@dataclass(frozen=True)
class Asks:
    """What counts for every call of one manager, unless the call says otherwise."""

    limits: Limits
    stated: frozenset[str]
    """The limits that were said out loud, though they may be the system's defaults."""
    isolation: Isolation
    security_mode: SecurityMode
    require_cgroups: bool
    ceilings: Mapping[str, float] = field(default_factory=nothing)
    """What the deployment gives nobody more of."""
    net_ceiling: NetMode | None = None

    @cached_property
    def usual(self) -> Request:
        """What is asked for when a call adds nothing; one object, by which its profile is found again."""
        return self._request(self.limits, self.stated)

    def stricter(self, isolation: Isolation | None, *, require_cgroups: bool = False) -> Asks:
        """Return the same for a caller who wants more caution: a stronger box, or the same by its name.

        Raises:
            Denied: The box that is asked for may be weaker, or is another than whoever made the manager chose.
        """
        if isolation not in (None, self.isolation) and not _is_stronger(isolation, self.isolation):
            raise Denied(
                f"isolation {isolation} is for whoever runs the service to choose",
                reason="not_granted",
                fix=f"leave it out, or ask for {Isolation.GVISOR}",
            )
        return replace(
            self, isolation=isolation or self.isolation, require_cgroups=self.require_cgroups or require_cgroups
        )

    def of(self, request: ExecutionRequest) -> Request:
        """Return what is asked for `request`: a timeout, and what differs from the system's defaults.

        Raises:
            InvalidRequest: It is no request, the timeout is no number, or there is no such commit.
        """
        if not isinstance(request, ExecutionRequest):
            raise InvalidRequest(
                f"what is to be executed must be an ExecutionRequest, not {type(request).__name__}",
                reason="invalid_value",
                fix='pass ringfence.ExecutionRequest("print(1)"), or call execute_code("python", "print(1)")',
            )
        if request.limits is None and request.timeout is None and request.commit is None:
            return self.usual
        limits, stated = (
            (self.limits, self.stated) if request.limits is None else (as_limits(request.limits), _NOTHING_STATED)
        )
        asked = (
            self._request(limits, stated) if request.timeout is None else self._timed(limits, stated, request.timeout)
        )
        return asked if request.commit is None else replace(asked, commit=read_commit(request.commit))

    def within(self, timeout: float | None) -> Request:
        """Return what is asked for a call that is to take no longer than `timeout` seconds.

        Raises:
            InvalidRequest: It is no number.
        """
        return self.usual if timeout is None else self._timed(self.limits, self.stated, timeout)

    def _timed(self, limits: Limits, stated: frozenset[str], timeout: object) -> Request:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float):
            raise InvalidRequest(f"timeout must be a number of seconds, not {timeout!r}", reason="invalid_limit")
        try:
            seconds = float(timeout)
        except OverflowError:  # a whole number of more digits than a limit can have
            seconds = math.inf if timeout > 0 else -math.inf
        return self._request(replace(limits, wall_seconds=seconds), stated | _TIME)

    def _request(self, limits: Limits, stated: frozenset[str]) -> Request:
        asked = {
            name: value
            for name in FIELDS
            if (value := getattr(limits, name)) != getattr(_DEFAULTS, name) or name in stated
        }
        return Request(
            limits=asked,
            isolation=self.isolation,
            security_mode=self.security_mode,
            require_cgroups=self.require_cgroups,
            ceilings=self.ceilings,
            net_ceiling=self.net_ceiling,
        )


def _is_stronger(asked: Isolation | None, own: Isolation) -> bool:
    # on its own the service takes a native box before any other of that class
    return asked is Isolation.GVISOR or (asked is Isolation.NATIVE and own is Isolation.AUTO)


def operation_of(
    request: ExecutionRequest, session_id: str | None, *, packages: tuple[str, ...], preload: tuple[str, ...]
) -> CodeRun:
    """Return what `request` asks to be run; what it does not say of packages and modules is as given.

    Raises:
        InvalidRequest: Something of it is not what it should be.
    """
    language = parse_language(request.language)
    wanted = arguments.strings("packages", request.packages)
    if wanted and language in _WITHOUT_PACKAGES:
        raise InvalidRequest(
            f"packages are Python's, and {language} has none here",
            reason="invalid_packages",
            fix="leave them out, and bring modules in files=",
        )
    return CodeRun(
        language=language,
        code=arguments.text(request.code),
        args=arguments.strings("args", request.args),
        stdin=arguments.as_bytes("stdin", request.stdin),
        files=arguments.contents("files", request.files),
        inputs=arguments.contents("inputs", request.inputs),
        env=arguments.environment(request.env),
        packages=wanted or packages,
        preload=arguments.strings("preload", request.preload) or preload,
        session_id=session_id,
        cwd=arguments.directory(request.cwd),
        secrets=tuple(map(read_ask, arguments.strings("secrets", request.secrets))),
        domains=arguments.strings("allow_domains", request.allow_domains),
    )
