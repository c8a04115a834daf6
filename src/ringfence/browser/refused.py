"""Why a page could not be opened, told from the browser's own word for it and from the rules of its way out."""

from __future__ import annotations

import re
from typing import Final

from ringfence.egress.proxy.rules import Rules
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest, RingfenceError, TimedOut, Unavailable
from ringfence.operation.target import target

_PROXYS: Final = re.compile(r"x-ringfence-reason: (\w+)")
_NET: Final = re.compile(r"net::(ERR_\w+)")


def refused(said: str, url: str, rules: Rules, noted: tuple[str, ...]) -> RingfenceError:
    """Return the error for what the driver or the proxy `said` when `url` was the last that was asked for."""
    told = _PROXYS.search(said)
    if told is not None:
        return _blocked(told[1], f"the egress proxy refused {url[:200]}")
    found = _NET.search(said)
    word = "" if found is None else found[1]
    if word == "ERR_TUNNEL_CONNECTION_FAILED":
        return _tunnel(url, rules)
    if word in ("ERR_BLOCKED_BY_ADMINISTRATOR", "ERR_UNKNOWN_URL_SCHEME", "ERR_UNSAFE_REDIRECT"):
        return CapabilityBlocked("pages of http and https are shown, of no other scheme", reason="scheme")
    if word == "ERR_BLOCKED_BY_CLIENT":
        return CapabilityBlocked("a browser that reads sends no such request", reason="method")
    if word == "ERR_UNSAFE_PORT":
        return CapabilityBlocked("the port belongs to another protocol than HTTP", reason="port")
    if "download" in noted or "Download is starting" in said:
        return CapabilityBlocked("the address is a download, and none are taken", reason="mime")
    if word.startswith(("ERR_CERT", "ERR_SSL")):
        return Unavailable(f"the other side cannot show that the name is its own ({word})", reason="tls")
    if word == "ERR_TIMED_OUT" or "Timeout" in said:
        return TimedOut("the page did not come in time", reason="read_timeout")
    return Unavailable(
        f"the page could not be opened ({word or said.partition(chr(10))[0][:200]})", reason="connect_failed"
    )


def _tunnel(url: str, rules: Rules) -> RingfenceError:
    """Say why no tunnel was made; of a refusal the browser tells nothing but that there was one."""
    try:
        refusal = rules.refuse_tunnel(target(url))
    except InvalidRequest:
        return CapabilityBlocked("a redirect leads to an address that cannot be read in one way", reason="redirect")
    if refusal is not None:
        return _blocked(refusal.reason, refusal.detail)
    return Unavailable(
        f"no connection to {url[:200]}: it cannot be reached, or leads to an address that is not public",
        reason="connect_failed",
    )


def _blocked(word: str, detail: str) -> RingfenceError:
    """Say in our words what the proxy says in its own."""
    said = f"{detail} ({word})"
    match word:
        case "host" | "not_granted" | "domain":
            return CapabilityBlocked(said, reason="domain")
        case "denied_domain" | "denied_port" | "denied_address":
            return CapabilityBlocked(said, reason="blacklist")
        case "address":
            return CapabilityBlocked(said, reason="private_address")
        case "port":
            return CapabilityBlocked(said, reason="port")
        case "scheme":
            return CapabilityBlocked(said, reason="scheme")
        case "method":
            return CapabilityBlocked(said, reason="method")
        case "consent_required":
            return Denied(said, reason="consent_required")
        case "resolution":
            return Unavailable(said, reason="name_resolution")
        case "connect":
            return Unavailable(said, reason="connect_failed")
        case _:
            return CapabilityBlocked(said)
