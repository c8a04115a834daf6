"""Which operations bring in what strangers wrote, and which can carry something out, as the policy names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ringfence.authority.taint import Outward
from ringfence.operation.code import CodeRun

if TYPE_CHECKING:
    from ringfence.operation.brokered import NetHttp
    from ringfence.operation.form import Operation

# by kind, so that judging a run of code imports none of the others
_OPENS_A_PAGE = frozenset({"browser_nav", "browser_extract", "browser_screenshot"})
_ACTS_ON_A_PAGE = frozenset({"browser_click", "browser_type"})
_OF_A_KIND = {
    "browser_nav": Outward.FETCH,
    **dict.fromkeys(_ACTS_ON_A_PAGE, Outward.SEND),
    "host_reach": Outward.CODE_NETWORK,
    "secret_use": Outward.SECRET_USE,
    "port_open": Outward.PORT_OPEN,
    "host_use": Outward.HOST_FILES,
    "ws_commit": Outward.COMMIT,
}
_READING = ("GET", "HEAD")


def brings_in(operation: Operation) -> str | None:
    """Return where an operation reaches for what strangers wrote, in words for a record; None where it does not.

    Reaching counts, not reading: what came of it is known only when it is too late to stay unmarked.
    """
    if isinstance(operation, CodeRun):
        return ", ".join(sorted(operation.domains)) or None
    if operation.kind == "net_http":
        from ringfence.errors import InvalidRequest
        from ringfence.operation.target import target

        try:
            return target(cast("NetHttp", operation).url).host
        except InvalidRequest:
            return "a web address"
    return "a web page" if operation.kind in _OPENS_A_PAGE | _ACTS_ON_A_PAGE else None


def outward_of(operation: Operation) -> frozenset[Outward]:
    """Return by which ways an operation could carry something out."""
    if isinstance(operation, CodeRun):
        asked = (
            (Outward.CODE_NETWORK, operation.domains),
            (Outward.SECRET_USE, operation.secrets),
            (Outward.PORT_OPEN, operation.ports),
            (Outward.PACKAGES, operation.packages),
        )
        return frozenset(use for use, wanted in asked if wanted)
    if operation.kind == "net_http":
        return _of_request(cast("NetHttp", operation))
    use = _OF_A_KIND.get(operation.kind)
    return frozenset() if use is None else frozenset({use})


def _of_request(request: NetHttp) -> frozenset[Outward]:
    from ringfence.operation.secret import references

    plain = request.method in _READING and not request.headers and request.body is None
    uses = {Outward.FETCH if plain else Outward.SEND}
    return frozenset(uses | {Outward.SECRET_USE} if references(request.headers) else uses)
