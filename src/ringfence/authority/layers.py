"""Who has a say about one call, and the table of what each of them said.

Inside one authority the more specific entry has won before this. Across authorities numbers take the smallest and
capabilities intersect. A request may narrow; one that asks for more is refused, or cut down and recorded on opt-in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ringfence.authority.catalogue import tool_name
from ringfence.authority.levels import Commit, NetMode
from ringfence.authority.limit_names import (
    FIELDS,
    NOTHING_STATED,
    Stated,
    check_stated,
    nothing,
    read_limit,
    shown,
    stated,
)
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.capability.budget import INHERITED, Budget
from ringfence.capability.capabilities import NO_CAPABILITIES, Capabilities, read_capabilities
from ringfence.capability.denials import NO_DENIALS, PRIVATE_NETWORKS, Denials
from ringfence.capability.limits import SYSTEM_CEILING, Limits
from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import InvalidRequest

if TYPE_CHECKING:
    from ringfence.authority.grant import Grant
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.policy_view import PolicyView


class OnExcess(StrEnum):
    """What happens to a request that asks for more than it may have."""

    REFUSE = "refuse"
    CLAMP = "clamp"


DEFAULTS = Limits()


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What nobody below can exceed, and what counts where nobody says anything."""

    limits: Limits = SYSTEM_CEILING
    defaults: Limits = DEFAULTS
    capabilities: Capabilities | None = None
    denials: Denials = NO_DENIALS
    net_mode: NetMode = NetMode.UNRESTRICTED
    budget: Budget = INHERITED


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asks for this once; nothing asked means whatever the authorities allow."""

    limits: Stated = field(default_factory=nothing)
    capabilities: Capabilities | None = None
    budget: Budget = INHERITED
    net_mode: NetMode | None = None
    isolation: Isolation = Isolation.AUTO
    security_mode: SecurityMode | None = None
    require_cgroups: bool = False
    commit: Commit = Commit.ALWAYS
    ceilings: Stated = field(default_factory=nothing)
    """What the deployment gives nobody more of; it narrows, whoever says it."""
    net_ceiling: NetMode | None = None

    def __post_init__(self) -> None:
        check_stated(self.limits)
        check_stated(self.ceilings)


@dataclass(frozen=True, slots=True)
class Layers:
    """Everybody who has a say about one call; no manifest or no grant is a voice that allows nothing."""

    ceiling: Ceiling
    view: PolicyView
    manifest: Manifest | None
    grant: Grant | None
    request: Request


@dataclass(frozen=True, slots=True)
class Row:
    """One setting: what every layer said, what came of it, and why; `layer` is where the value came from."""

    setting: str
    default: Any
    ceiling: Any
    policy: Any
    manifest: Any
    grant: Any
    request: Any
    value: Any
    layer: str
    why: str
    origin: str = ""
    excess: str | None = None
    """The layer whose ceiling the request exceeds."""


_SPECIFIC_FIRST = ("grant", "manifest", "policy")


def read_overrides(form: object) -> Request:
    """Read a request's `policy_overrides`: limits by their names, `net` with a mode, `capabilities`, `commit`.

    Raises:
        InvalidRequest: A name is unknown, or a value is wrong.
    """
    if not isinstance(form, dict):
        raise InvalidRequest("policy_overrides must be an object", reason="invalid_overrides")
    limits: dict[str, float] = {}
    rest: dict[str, Any] = {}
    for name, value in form.items():
        if name == "capabilities":
            rest["capabilities"] = read_capabilities(value)
        elif name == "net":
            rest["net_mode"] = _read_net(value)
        elif name == "commit":
            rest["commit"] = read_commit(value)
        else:
            limit, amount = read_limit(str(name), value)
            limits[limit] = amount
    return Request(limits=limits, **rest)


def read_commit(value: object) -> Commit:
    """Read what is to become of a run's changes.

    Raises:
        InvalidRequest: It is none of the words.
    """
    for word in Commit:
        if value == word.value:
            return word
    words = ", ".join(map(str, Commit))
    raise InvalidRequest(f"commit must be one of {words}, not {value!r}", reason="invalid_overrides", fix='write "ask"')


def commit_of(layers: Layers) -> Commit:
    """Return the strictest of what policy and request say about a run's changes."""
    return max(layers.view.commit, layers.request.commit)


def _read_net(form: object) -> NetMode:
    if isinstance(form, dict) and form.keys() == {"mode"}:
        for mode in NetMode:
            if form["mode"] == mode.value:
                return mode
    modes = ", ".join(str(mode) for mode in NetMode)
    raise InvalidRequest(
        f'net must be {{"mode": one of {modes}}}, not {form!r}',
        reason="invalid_overrides",
        fix='write {"mode": "none"}',
    )


def limit_rows(layers: Layers) -> Iterator[Row]:
    """Resolve every limit, and keep what each layer said about it."""
    said: dict[str, Mapping[str, float]] = {
        "policy": layers.view.limits,
        "manifest": NOTHING_STATED if layers.manifest is None else layers.manifest.limits,
        "grant": NOTHING_STATED if layers.grant is None else layers.grant.limits,
    }
    rows = {name: _limit_row(name, layers, said) for name in FIELDS}
    wall, cpus = rows["wall_seconds"].value, rows["cpus"].value
    for row in rows.values():
        yield _following(row, wall * cpus) if row.setting == "cpu_seconds" else row


def _limit_row(name: str, layers: Layers, said: Mapping[str, Mapping[str, float]]) -> Row:
    default = getattr(layers.ceiling.defaults, name)
    said_of_all = (side.get(name, float("inf")) for side in (layers.view.ceilings, layers.request.ceilings))
    ceiling = min(getattr(layers.ceiling.limits, name), *said_of_all)
    bounds = {"ceiling": ceiling} | {layer: said[layer][name] for layer in _SPECIFIC_FIRST if name in said[layer]}
    bound = min(bounds, key=lambda layer: bounds[layer])
    most = bounds[bound]
    wanted = layers.request.limits.get(name)
    layer = next((layer for layer in _SPECIFIC_FIRST if name in said[layer]), "default")
    value = bounds.get(layer, default)
    excess = None
    if wanted is not None:
        excess = bound if wanted > most else None
        value, layer = (most, bound) if excess else (wanted, "request")
        why = f"exceeds the {bound}'s {shown(name, most)}" if excess else "the request narrows"
    elif value > most:
        # a manifest that declares more than the policy has is not wrong, it just does not get it
        why = f"the {layer} states {shown(name, value)}, the {bound} allows {shown(name, most)}"
        value, layer = most, bound
    else:
        why = "the system's default" if layer == "default" else "the most specific value, under every ceiling"
    return Row(
        setting=name,
        default=default,
        ceiling=stated(name, ceiling),
        policy=said["policy"].get(name),
        manifest=said["manifest"].get(name),
        grant=said["grant"].get(name),
        request=wanted,
        value=stated(name, value),
        layer=layer,
        why=why,
        origin=layers.view.origin.get(name, "") if layer == "policy" else "",
        excess=excess,
    )


def _following(row: Row, busy: float) -> Row:
    """Let a run that may take two minutes also compute for two minutes, unless somebody said otherwise."""
    if row.layer != "default" or busy <= row.value:
        return row
    return Row(
        row.setting, row.default, row.ceiling, None, None, None, None,
        min(busy, row.ceiling), "default", "follows wall_seconds times cpus",
    )  # fmt: skip


def capability_rows(layers: Layers) -> Iterator[Row]:
    """Intersect the capabilities kind by kind, and keep what each layer said."""
    sides = _capabilities(layers)
    met = meet_all(layers)
    wanted = layers.request.capabilities
    beyond = wanted is not None and not met.covers(wanted)
    final = met if wanted is None else met.meet(wanted)
    names = {item.name for side in sides.values() if side is not None for item in side}
    for name in sorted(names):
        shown = {layer: None if side is None else _shown(side, name) for layer, side in sides.items()}
        yield Row(
            setting=name,
            default=(),
            ceiling=shown["ceiling"],
            policy=shown["policy"],
            manifest=shown["manifest"],
            grant=shown["grant"],
            request=shown["request"],
            value=_shown(final, name),
            layer="meet",
            why=_reason(layers, beyond, name, wanted, met),
            excess="capabilities" if beyond and _is_beyond(wanted, met, name) else None,
        )


def refusal_of(layers: Layers) -> str | None:
    """Return why nothing at all is allowed, or nothing when something may be."""
    if layers.view.refusal:
        return layers.view.refusal
    if layers.manifest is None:
        return "no_manifest"
    if layers.grant is None:
        return "no_grant"
    # a grant for one tool, shown together with the manifest of another, would get the wider of two policies
    names = {layers.view.tool, tool_name(layers.grant.tool_name), tool_name(layers.manifest.id)}
    return None if len(names) == 1 else "tool_mismatch"


def meet_all(layers: Layers) -> Capabilities:
    """Return what ceiling, policy, manifest and grant all allow."""
    if refusal_of(layers):
        return NO_CAPABILITIES
    met: Capabilities | None = None
    for layer, side in _capabilities(layers).items():
        if side is not None and layer != "request":
            met = side if met is None else met.meet(side)
    return _within_mode(met if met is not None else NO_CAPABILITIES, net_mode(layers))


def net_mode(layers: Layers) -> NetMode:
    """Return the most network that ceiling, policy and request all allow."""
    most = min(layers.ceiling.net_mode, layers.view.net_mode, layers.request.net_ceiling or NetMode.UNRESTRICTED)
    return most if layers.request.net_mode is None else min(most, layers.request.net_mode)


def _within_mode(capabilities: Capabilities, mode: NetMode) -> Capabilities:
    """Without network no host is left; safe retrieval only ever reads."""
    if mode >= NetMode.ALLOWLIST or not (capabilities.of("net.http") or capabilities.of("browser.use")):
        return capabilities
    if mode is NetMode.NONE:
        return Capabilities(item for item in capabilities if item.name not in ("net.http", "browser.use"))
    from ringfence.capability.net import READING, NetHttp

    return Capabilities(
        replace(item, methods=item.methods & READING) if isinstance(item, NetHttp) else item for item in capabilities
    )


def _capabilities(layers: Layers) -> dict[str, Capabilities | None]:
    return {
        "ceiling": layers.ceiling.capabilities,
        "policy": layers.view.capabilities,
        "manifest": NO_CAPABILITIES if layers.manifest is None else layers.manifest.capabilities,
        "grant": NO_CAPABILITIES if layers.grant is None else layers.grant.capabilities,
        "request": layers.request.capabilities,
    }


def dangers(layers: Layers, capabilities: Capabilities, denials: Denials) -> tuple[str, ...]:
    """Name what no standard profile opens: each of these takes the word of a person, whatever the policy says."""
    reaches = bool(capabilities.of("net.http"))
    secrets = {item.resource() for item in capabilities.of("secret.use")}
    found = {
        "host_files": bool(capabilities.of("fs.host")),
        "unrestricted_network": reaches and net_mode(layers) is NetMode.UNRESTRICTED,
        "private_network": reaches and not denials.networks >= PRIVATE_NETWORKS,
        "lasting_secret": bool(secrets & layers.view.lasting_secrets),
    }
    return tuple(name for name, is_open in found.items() if is_open)


def denials_of(layers: Layers) -> Denials:
    """Return what ceiling, policy or grant deny."""
    met = layers.ceiling.denials.meet(layers.view.denials)
    return met if layers.grant is None else met.meet(layers.grant.denials)


def denial_rows(layers: Layers) -> Iterator[Row]:
    """Add up the deny lists, and keep whose each entry is."""
    met = denials_of(layers)
    for name in met.to_json():
        said = {
            "ceiling": _listed(layers.ceiling.denials, name),
            "policy": _listed(layers.view.denials, name),
            "grant": None if layers.grant is None else _listed(layers.grant.denials, name),
        }
        yield Row(
            f"denied_{name}", (), said["ceiling"], said["policy"], None, said["grant"], None, _listed(met, name),
            "union", "deny lists add up", layers.view.origin.get(f"denied_{name}", ""),
        )  # fmt: skip


def budget_rows(layers: Layers) -> Iterator[Row]:
    """Take the smallest of every stated amount."""
    said = {
        "ceiling": layers.ceiling.budget,
        "policy": layers.view.budget,
        "grant": INHERITED if layers.grant is None else layers.grant.budget,
        "request": layers.request.budget,
    }
    met = budget_of(layers)
    for kind in met.to_json():
        amounts = {layer: getattr(budget, kind) for layer, budget in said.items()}
        value = getattr(met, kind)
        yield Row(
            f"budget.{kind}", None, amounts["ceiling"], amounts["policy"], None, amounts["grant"], amounts["request"],
            value, next(layer for layer, amount in amounts.items() if amount == value), "the smallest amount",
        )  # fmt: skip


def budget_of(layers: Layers) -> Budget:
    """Return the smallest budget of everybody who states one."""
    met = layers.ceiling.budget.meet(layers.view.budget).meet(layers.request.budget)
    return met if layers.grant is None else met.meet(layers.grant.budget)


def _listed(denials: Denials, name: str) -> tuple[str, ...]:
    return tuple(map(str, sorted(getattr(denials, name))))


def _shown(side: Capabilities, name: str) -> tuple[str, ...]:
    return tuple(str(item).removeprefix(f"{name}:") for item in side.of(name))


def _is_beyond(wanted: Capabilities | None, met: Capabilities, name: str) -> bool:
    return wanted is not None and not met.covers(Capabilities(wanted.of(name)))


def _reason(layers: Layers, beyond: bool, name: str, wanted: Capabilities | None, met: Capabilities) -> str:
    refusal = refusal_of(layers)
    if refusal:
        return f"nothing, because of {refusal}"
    return "the request asks for more" if beyond and _is_beyond(wanted, met, name) else "intersection"
