"""The network broker: an agent's request, sent by the host under the rules of safe retrieval, recorded hop by hop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from ringfence.authority.caller import LOCAL
from ringfence.authority.levels import Decision, RiskLevel
from ringfence.authority.profile import Profile
from ringfence.dataclass import replace
from ringfence.egress.addresses import AddressRules
from ringfence.egress.asking import Ask
from ringfence.egress.caps import RetrievalCaps
from ringfence.egress.dialing import Dialer, own_of, system_addresses
from ringfence.egress.media import charset, safe_filename
from ringfence.egress.retrieval import Hop, Retrieved, Retriever, Rules, Trail
from ringfence.egress.settings import NetSettings
from ringfence.egress.urls import url_of
from ringfence.errors import CapabilityBlocked, RingfenceError
from ringfence.executors.beside import while_wanted
from ringfence.executors.leases import tell_leases
from ringfence.guard import rules as guard
from ringfence.operation.brokered import NetHttp
from ringfence.operation.secret import put_in, references
from ringfence.operation.target import Target, target
from ringfence.outcome import BrokerOutcome, Budget, Destination, Digest, Effect, Network
from ringfence.ports import ExecCtx

if TYPE_CHECKING:
    from ringfence.masking import Masks
    from ringfence.secrets.registry import Registry

_MOST_PREVIEW = 2000
_PARTIAL = 206
MOST_OF_A_TENANT = 16
"""How many requests of one tenant are under way at once: each may hold `max_bytes_in`, and the next one waits."""
_Lanes = WeakValueDictionary[str, asyncio.Semaphore]
_lanes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Lanes] = WeakKeyDictionary()
# what is asked again about where a redirect leads; time and consent were asked about the call
_ABOUT_A_REDIRECT = (guard.manifest, guard.grant, guard.deny_lists, guard.capability, guard.policy_rules)


class NetExecutor:
    """Implements `ports.Executor` for requests; it keeps nothing between one and the next."""

    def __init__(self, settings: NetSettings, registry: Callable[[], Registry] | None = None) -> None:
        """Leave the host as `settings` say; `registry` has the secrets that requests refer to."""
        self._settings = settings
        self._registry = registry
        self._dial = settings.dial or Dialer(settings.ca_file)
        self._addresses_of = settings.lookup or system_addresses

    def capability_domain(self) -> str:
        """Return the domain whose operations are carried out here."""
        return "net.http"

    async def execute(self, ctx: ExecCtx, operation: NetHttp) -> BrokerOutcome:
        """Send `operation`, follow its redirects as far as the profile goes, and return what came.

        Raises:
            CapabilityBlocked: A name, an address, a redirect or the answer is none that the profile allows.
            Unavailable: Nobody answers, or not as HTTP says.
            TimedOut: It takes longer than the profile allows.
        """
        profile, trail = ctx.profile, Trail()
        where, headers, masks = target(operation.url), operation.headers, None
        if references(headers):
            headers, masks = await self._with_secret(ctx, where, headers)
        ask = Ask(operation.method, where, headers, operation.body)
        retriever = Retriever(partial(while_wanted, profile.tenant, self._addresses_of), self._dial)
        try:
            async with _lane_of(profile.tenant):
                found = await retriever.fetch(ask, self._rules(profile, ask), trail)
            if masks is not None:  # a server that echoes what it was sent must not make it known
                if found.head.status == _PARTIAL:
                    raise CapabilityBlocked(
                        "the answer is a part of one, and may hold a part of the secret", reason="secret_way"
                    )
                masked = await while_wanted(profile.tenant, masks.mask, found.content)
                found = replace(found, content=masked)
        except asyncio.CancelledError:
            ctx.reached.append(_reached(trail, masks))
            raise
        except RingfenceError as error:
            error.done = BrokerOutcome("net_http", {}, None, _used(trail), _effects(trail, masks))
            if masks is not None:
                error.args = (masks.mask_text(str(error)),)
                error.details = _hidden(error.details, masks)
            raise
        out = _hidden({**_told(found, trail), **_shown(found, inline=profile.output_inline)}, masks)
        content = found.content if profile.output_inline else None
        return BrokerOutcome("net_http", out, content, _used(trail), _effects(trail, masks))

    async def _with_secret(
        self, ctx: ExecCtx, where: Target, headers: Mapping[str, str]
    ) -> tuple[Mapping[str, str], Masks]:
        """Return the headers with the secret in its place, once it is written down that it goes there."""
        from ringfence.secrets.lending import lend_to_request  # most requests carry none

        if self._registry is None:
            raise CapabilityBlocked("nothing here lends secrets", reason="executor_disabled")
        await ctx.begun()  # a source may be asked over the network
        lend = partial(lend_to_request, self._registry(), ctx.profile.tenant or LOCAL, where, headers)
        lent, value = await while_wanted(ctx.profile.tenant, lend)
        await tell_leases(ctx, lent)
        values = {lent.leases[0].name: value}
        return {name: put_in(text, values) for name, text in headers.items()}, lent.masks

    def _rules(self, profile: Profile, first: Ask) -> Rules:
        return Rules(
            addresses=AddressRules.of(profile.denials, profile.dangers, nat64=self._settings.nat64),
            caps=RetrievalCaps.of(profile.limits),
            media=profile.mime_allow,
            own=own_of,
            may_follow=partial(_judge_redirect, profile, first),
        )


def _lane_of(tenant: str) -> asyncio.Semaphore:
    lanes = _lanes.setdefault(asyncio.get_running_loop(), _Lanes())
    return lanes.setdefault(tenant, asyncio.Semaphore(MOST_OF_A_TENANT))


def _judge_redirect(profile: Profile, first: Ask, ask: Ask) -> None:
    """Ask the guard about a redirect as about a request of its own.

    Raises:
        CapabilityBlocked: It says no, or that somebody would have to be asked.
    """
    if profile.dangers and ask.where.origin != first.where.origin:  # a person agreed to what they were shown
        raise CapabilityBlocked(
            f"a redirect leads to {ask.where.host}, which nobody agreed to", reason="redirect", host=ask.where.host
        )
    operation = NetHttp(ask.method, url_of(ask.where), ask.headers, ask.body)
    case = guard.Case(profile, operation, 0, RiskLevel.HIGH, RiskLevel.HIGH)
    for rule in _ABOUT_A_REDIRECT:
        answer = rule(case)
        if answer is not None and answer.decision is not Decision.ALLOW:
            raise CapabilityBlocked(
                f"a redirect leads to {ask.where.host}: {answer.detail}",
                reason="redirect",
                host=ask.where.host,
                refused=answer.reason or "",
            )


def _told(found: Retrieved, trail: Trail) -> dict[str, Any]:
    """Return where the content came from and what it is, as far as the server can be believed."""
    last = trail.hops[-1]
    return {
        "url": url_of(last.where),
        "status": found.head.status,
        "address": last.address,
        "hops": [{"url": url_of(hop.where), "status": hop.status, "address": hop.address} for hop in trail.hops],
        "media_type": found.media_type,
        "charset": charset(found.head.get("content-type")),
        "filename": safe_filename(found.head.get("content-disposition")),
        "bytes": len(found.content),
        "raw_bytes": found.raw_bytes,
        "digest": Digest.of(found.content).to_dict(),
        "untrusted": True,
    }


def _shown(found: Retrieved, *, inline: bool) -> dict[str, Any]:
    """Return the beginning of what is text, where the policy lets content into results."""
    kind = found.media_type or ""
    is_text = kind.startswith("text/") or kind.endswith(("json", "xml", "yaml", "javascript", "toml"))
    shown = found.content[: _MOST_PREVIEW * 4].decode("utf-8", "replace")[:_MOST_PREVIEW] if inline and is_text else ""
    return {"preview": shown}


def _used(trail: Trail) -> Budget:
    return Budget(bytes_in=trail.bytes_in, bytes_out=trail.bytes_out)


def _effects(trail: Trail, masks: Masks | None) -> tuple[Effect, ...]:
    return tuple(Effect("network", _hidden(_meta(hop), masks)) for hop in trail.hops)


def _reached(trail: Trail, masks: Masks | None) -> Network:
    """Tell where a request had gone whose caller no longer waits for it."""
    names = [hop.where.host if masks is None else masks.mask_text(hop.where.host) for hop in trail.hops]
    return Network(
        tuple(
            Destination(
                name,
                hop.where.port,
                "allowed" if hop.address else "failed",
                "" if hop.decision == "allowed" else hop.decision,
                hop.method,
                hop.address or "",
                1,
                hop.bytes_in,
                hop.bytes_out,
            )
            for name, hop in zip(names, trail.hops, strict=True)
        ),
        complete=False,
    )


def _hidden(members: dict[str, Any], masks: Masks | None) -> dict[str, Any]:
    """Return what is told without the secret that went along: a server may say it back, in a name or an address."""
    if masks is None:
        return members
    hidden: dict[str, Any] = json.loads(masks.mask_text(json.dumps(members, ensure_ascii=False)))
    return hidden


def _meta(hop: Hop) -> dict[str, str | int]:
    """Describe a hop for the record: whom it was for and what was decided, without path, query or content."""
    known: dict[str, str | int | None] = {
        "host": hop.where.host,
        "port": hop.where.port,
        "method": hop.method,
        "address": hop.address,
        "status": hop.status,
        "bytes_out": hop.bytes_out,
        "bytes_in": hop.bytes_in,
        "decision": hop.decision,
    }
    return {name: value for name, value in known.items() if value is not None}
