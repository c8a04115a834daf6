"""Make the profile of one call from everybody who has a say about it, and show how it came about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.layers import (
    Ceiling,
    Layers,
    OnExcess,
    Request,
    Row,
    budget_of,
    budget_rows,
    capability_rows,
    commit_of,
    dangers,
    denial_rows,
    denials_of,
    limit_rows,
    meet_all,
    net_mode,
    refusal_of,
)
from ringfence.authority.levels import Commit, NetMode, RiskLevel
from ringfence.authority.limit_names import shown
from ringfence.authority.profile import Profile, SecurityMode
from ringfence.capability.canonical import digest
from ringfence.capability.capabilities import NO_CAPABILITIES
from ringfence.capability.limits import Limits
from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.authority.explanation import Explanation
    from ringfence.authority.grant import Grant
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.policy import PolicySnapshot
    from ringfence.authority.taint import TaintPolicy

SYSTEM: Final = Ceiling()
NO_REQUEST: Final = Request()
_MOST_KEPT = 1024
_AT_ONCE = "max_concurrency"


class ProfileBuilder:
    """Meets ceiling, policy, manifest, grant and request; the same voices are heard once and remembered."""

    def __init__(self, ceiling: Ceiling = SYSTEM, *, on_excess: OnExcess = OnExcess.REFUSE) -> None:
        """`on_excess` says what becomes of a request for more than there is."""
        self._ceiling = ceiling
        self._on_excess = on_excess
        # The entries hold what their keys name by identity, so that no identity is taken by something else meanwhile.
        self._kept: dict[tuple[Any, ...], tuple[Profile, Layers]] = {}

    def build(
        self,
        grant: Grant | None,
        manifest: Manifest | None,
        policy: PolicySnapshot,
        *,
        tool: str = "",
        role: str | None = None,
        request: Request = NO_REQUEST,
    ) -> Profile:
        """Return the profile of the call that `grant` is for; `tool` is named when neither grant nor manifest is there.

        Whether the grant is expired, revoked or of another call is not asked here.

        Raises:
            InvalidRequest: The request exceeds what it may have, and is not to be clamped.
        """
        layers = self._layers(grant, manifest, policy, tool, role, request)
        key = _key(layers)
        kept = self._kept.get(key)
        if kept is None:
            kept = (self._resolve(layers, policy), layers)
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = kept
        if grant is None:
            return kept[0]
        return replace(
            kept[0],
            tenant=grant.tenant,
            subject_id=grant.subject_id,
            call_id=grant.call_id,
            expires_at=grant.expires_at,
            grant_id=grant.nonce,
            decision_key_fingerprint=grant.decision_key_fingerprint,
        )

    def explain(
        self,
        grant: Grant | None,
        manifest: Manifest | None,
        policy: PolicySnapshot,
        *,
        tool: str = "",
        role: str | None = None,
        request: Request = NO_REQUEST,
    ) -> Explanation:
        """Return, for the same arguments as `build`, every value with its layer and every ceiling it met."""
        from ringfence.authority.explanation import Explanation  # not at the top: a run asks for none

        layers = self._layers(grant, manifest, policy, tool, role, request)
        rows = (
            *limit_rows(layers),
            *capability_rows(layers),
            *denial_rows(layers),
            *budget_rows(layers),
            *_word_rows(layers, policy.policy.security_mode),
            *_said_of_all(policy),
            *_taint_rows(policy.policy.taint),
        )
        return Explanation(layers.view.tool, role, policy.policy_version_hash, self._on_excess, rows)

    def _layers(
        self,
        grant: Grant | None,
        manifest: Manifest | None,
        policy: PolicySnapshot,
        tool: str,
        role: str | None,
        request: Request,
    ) -> Layers:
        name = tool or (grant.tool_name if grant else "") or (manifest.id if manifest else "")
        return Layers(self._ceiling, policy.view(name, role), manifest, grant, request)

    def _resolve(self, layers: Layers, policy: PolicySnapshot) -> Profile:
        rows = list(limit_rows(layers))
        clamped = self._clamped(rows) + self._clamped_mode(layers)
        refusal = refusal_of(layers)
        capabilities = meet_all(layers)
        wanted = layers.request.capabilities
        if wanted is not None:
            if not capabilities.covers(wanted):
                clamped += self._clamped_capabilities(layers)
            capabilities = capabilities.meet(wanted)
        manifest, view = layers.manifest, layers.view
        denials = denials_of(layers)
        profile = Profile(
            limits=Limits(**{row.setting: row.value for row in rows}),
            security_mode=_security_mode(policy.policy.security_mode, layers.request.security_mode),
            isolation=layers.request.isolation,
            require_cgroups=view.require_cgroups or layers.request.require_cgroups,
            tool_name=view.tool,
            role=view.role,
            capabilities=capabilities,
            denials=denials,
            safety=_safety(layers),
            side_effects=manifest.side_effects if manifest else frozenset(),
            net_mode=_net_mode(layers, bool(capabilities.of("net.http"))),
            isolation_floor=view.isolation,
            critical_isolation=view.critical_isolation,
            mime_allow=view.mime_allow,
            env_allow=view.env_allow,
            declared=manifest.capabilities if manifest else NO_CAPABILITIES,
            granted=layers.grant.capabilities if layers.grant else NO_CAPABILITIES,
            mode=policy.policy.mode,
            rules=(*policy.policy.rules, *policy.policy.approvals),
            allowed_commands=view.allowed_commands,
            output_inline=view.output_inline,
            intercept_tls=view.intercept_tls,
            commit=commit_of(layers),
            budget=budget_of(layers),
            scope_budgets=policy.policy.budgets,
            concurrency=next((row.value for row in rows if row.setting == _AT_ONCE and row.layer != "default"), None),
            dangers=dangers(layers, capabilities, denials),
            refusal=refusal,
            clamped=clamped,
            manifest_version=manifest.version if manifest else "",
            confined=bool(manifest and manifest.runtime),
            taint=policy.policy.taint,
            lasting_secrets=view.lasting_secrets,
            policy_version_hash=policy.policy_version_hash,
        )
        return replace(profile, profile_hash=digest(profile.normal_form()))

    def _clamped(self, rows: list[Row]) -> tuple[str, ...]:
        over = [row for row in rows if row.excess]
        if over and self._on_excess is OnExcess.REFUSE:
            first = over[0]
            raise _excess(
                f"{first.setting} of {shown(first.setting, first.request)} {first.why}",
                f"ask for at most {shown(first.setting, first.value)}",
                setting=first.setting,
                limit=str(first.value),
                observed=str(first.request),
                layer=str(first.excess),
            )
        return tuple(
            f"{row.setting}: {shown(row.setting, row.request)} to {shown(row.setting, row.value)} ({row.excess})"
            for row in over
        )

    def _clamped_mode(self, layers: Layers) -> tuple[str, ...]:
        wanted, most = layers.request.net_mode, net_mode(layers)
        if wanted is None or wanted <= most:
            return ()
        if self._on_excess is OnExcess.REFUSE:
            raise _excess(
                f"net_mode {wanted} exceeds {most}",
                f"ask for at most {most}",
                setting="net_mode",
                limit=str(most),
                observed=str(wanted),
                layer="policy",
            )
        return (f"net_mode: {wanted} to {most}",)

    def _clamped_capabilities(self, layers: Layers) -> tuple[str, ...]:
        over = [row for row in capability_rows(layers) if row.excess]
        if self._on_excess is OnExcess.REFUSE:
            first = over[0]
            raise _excess(
                f"the request asks for more of {first.setting} than the authorities allow",
                "ask for what the policy, the manifest and the grant all allow",
                setting=first.setting,
                limit=", ".join(first.value) or "nothing",
                observed=", ".join(first.request),
                layer="meet",
            )
        return tuple(f"{row.setting}: {', '.join(row.request)} to {', '.join(row.value) or 'nothing'}" for row in over)


def _excess(message: str, fix: str, **details: str) -> InvalidRequest:
    return InvalidRequest(message, reason="limit_exceeds_ceiling", fix=fix, **details)


def _key(layers: Layers) -> tuple[Any, ...]:
    grant, request = layers.grant, layers.request
    return (
        id(layers.view),
        id(layers.manifest),
        None
        if grant is None
        else (
            grant.tool_name,
            grant.capabilities,
            grant.budget,
            _items(grant.limits),
            grant.denials,
            grant.safety_floor,
        ),
        None
        if request is NO_REQUEST
        else (
            _items(request.limits),
            request.capabilities,
            request.budget,
            request.net_mode,
            request.isolation,
            request.security_mode,
            request.require_cgroups,
            request.commit,
            _items(request.ceilings),
            request.net_ceiling,
        ),
    )


def _items(stated: Any) -> tuple[Any, ...]:
    return tuple(sorted(stated.items())) if stated else ()


def _security_mode(policy: SecurityMode | None, request: SecurityMode | None) -> SecurityMode:
    """A request can make a permissive policy strict, never the other way round."""
    if policy is None:
        return request or SecurityMode.STRICT
    return SecurityMode.STRICT if SecurityMode.STRICT in (policy, request) else policy


def _safety(layers: Layers) -> RiskLevel:
    manifest = layers.manifest.safety_class if layers.manifest else RiskLevel.HIGH
    return max(layers.view.risk, manifest, layers.grant.safety_floor if layers.grant else RiskLevel.SAFE)


def _net_mode(layers: Layers, reaches: bool) -> NetMode:
    return net_mode(layers) if reaches else NetMode.NONE


def _word_rows(layers: Layers, stated_mode: SecurityMode | None) -> tuple[Row, ...]:
    view, manifest, grant, request = layers.view, layers.manifest, layers.grant, layers.request
    met = meet_all(layers)
    final = met if request.capabilities is None else met.meet(request.capabilities)
    asked = request.net_mode
    floor = str(grant.safety_floor) if grant else None
    declared = str(manifest.safety_class) if manifest else None
    mode = _security_mode(stated_mode, request.security_mode)
    return (
        Row("safety", None, None, str(view.risk), declared, floor, None, str(_safety(layers)), "highest", "the highest",
            view.origin.get("risk_level", "")),
        Row("net_mode", "none", str(layers.ceiling.net_mode), str(view.net_mode), None, None, asked and str(asked),
            str(_net_mode(layers, bool(final.of("net.http")))), "lowest",
            "the lowest" if final.of("net.http") else "no host is left",
            view.origin.get("net_mode", view.origin.get("network_access", "")),
            "policy" if asked is not None and asked > net_mode(layers) else None),
        Row("isolation", "os", None, str(view.isolation), None, None, None, str(view.isolation), "policy",
            "the floor of the policy", view.origin.get("isolation", view.origin.get("sandbox_enabled", ""))),
        Row("critical_isolation", "container", None,
            str(view.critical_isolation) if "critical_isolation" in view.origin else None, None, None, None,
            str(view.critical_isolation), "policy", "for code that is critical, in strict mode",
            view.origin.get("critical_isolation", "")),
        Row("require_cgroups", False, None, view.require_cgroups if "require_cgroups" in view.origin else None, None,
            None, request.require_cgroups or None, view.require_cgroups or request.require_cgroups, "strictest",
            "the policy or the request", view.origin.get("require_cgroups", "")),
        Row("security_mode", "strict", None, stated_mode and str(stated_mode), None, None,
            request.security_mode and str(request.security_mode), str(mode), "strictest",
            "a request can make it strict, a strict policy nobody permissive"),
        Row("commit", "always", None, str(view.commit) if "commit" in view.origin else None, None, None,
            None if request.commit is Commit.ALWAYS else str(request.commit), str(commit_of(layers)), "strictest",
            "the strictest", view.origin.get("commit", "")),
        _alone("env_allow", None, None if view.env_allow is None else tuple(sorted(view.env_allow)), layers),
        _alone("mime_allow", None, None if view.mime_allow is None else tuple(sorted(view.mime_allow)), layers),
        _alone("allowed_commands", None, view.allowed_commands, layers),
        _alone("output_inline", True, view.output_inline, layers),
        _alone("intercept_tls", False, view.intercept_tls, layers),
    )  # fmt: skip


def _said_of_all(policy: PolicySnapshot) -> Iterator[Row]:
    """Tell what the policy says of every call: its mode, and each of its rules."""
    mode = str(policy.policy.mode)
    yield Row("mode", "cowork", None, mode, None, None, None, mode, "policy", "when a person is asked", "mode")
    for rule in (*policy.policy.rules, *policy.policy.approvals):
        said = f"{rule.decision} {rule.subject} {rule.shown}"
        yield Row(
            f"rule {rule.id}", None, None, said, None, None, None, said, "policy", "the strictest counts", "rules"
        )


def _taint_rows(taint: TaintPolicy | None) -> Iterator[Row]:
    """Tell what changes once the call's session has reached for untrusted content."""
    if taint is None:
        return
    reach = str(taint.reach)
    yield Row(
        "taint.reach", "session", None, reach, None, None, None, reach, "policy", "how far a mark is seen", "taint"
    )
    for use, decision in taint.decisions.items():
        said, why = str(decision), "once untrusted content was reached for"
        yield Row(f"taint.{use}", "allow", None, said, None, None, None, said, "policy", why, "taint")


def _alone(setting: str, default: Any, value: Any, layers: Layers) -> Row:
    """Tell what the policy alone decides."""
    origin = layers.view.origin.get(setting, "")
    layer, why = ("policy", "the policy decides") if origin else ("default", "the system's default")
    return Row(setting, default, None, value if origin else None, None, None, None, value, layer, why, origin)
