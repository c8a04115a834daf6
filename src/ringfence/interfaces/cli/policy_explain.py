"""`ringfence policy explain`: what one call may do, every value with its layer and every ceiling that it met."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringfence.authority import strict_json
from ringfence.authority.explanation import Explanation
from ringfence.authority.grant import Grant, read_grant
from ringfence.authority.layers import OnExcess, Request, read_overrides
from ringfence.authority.manifest import Manifest, built_in_manifest
from ringfence.authority.manifest_reader import MAX_BYTES, load_manifest
from ringfence.authority.policy import PolicySnapshot
from ringfence.authority.policy_view import PolicyView
from ringfence.authority.profile import Profile
from ringfence.authority.profile_builder import NO_REQUEST, ProfileBuilder
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest
from ringfence.guard.consent import STANDING, Source, needed
from ringfence.guard.policy_guard import declared_risk
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.policy import load, print_json
from ringfence.interfaces.cli.render import one_line
from ringfence.interfaces.cli.usage import UsageError

_NOTHING_BECAUSE = {
    "unknown_role": "the policy has no such role",
    "tool_not_in_role": "the role may not use the tool",
    "no_manifest": "the tool is not a built-in one and has no manifest here; give --manifest FILE",
    "tool_mismatch": "tool, manifest and grant do not name the same tool",
}


@dataclass(frozen=True, slots=True)
class Call:
    """Everybody who has a say about the call in question, and where each was found."""

    tool: str
    role: str | None
    policy: PolicySnapshot
    manifest: Manifest | None
    manifest_from: str | None
    grant: Grant
    grant_from: str
    request: Request = NO_REQUEST


def explain_command(words: Sequence[str]) -> int:
    """Carry out `ringfence policy explain` and return the exit code."""
    parser = StrictParser(prog="ringfence policy explain")
    parser.add_argument("--policy", metavar="FILE", required=True)
    parser.add_argument("--role")
    parser.add_argument("--tool")
    parser.add_argument("--manifest", metavar="FILE")
    parser.add_argument("--grant", metavar="FILE")
    parser.add_argument("--override", metavar="KEY=VALUE", dest="overrides", action="append", default=[])
    parser.add_argument("--clamp", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    call = gather(options)
    builder = ProfileBuilder(on_excess=OnExcess.CLAMP if options.clamp else OnExcess.REFUSE)
    explanation = builder.explain(
        call.grant, call.manifest, call.policy, tool=call.tool, role=call.role, request=call.request
    )
    profile: Profile | None = None
    excess: InvalidRequest | None = None
    try:
        profile = builder.build(
            call.grant, call.manifest, call.policy, tool=call.tool, role=call.role, request=call.request
        )
    except InvalidRequest as error:
        excess = error  # the table shows where, and the call would get this very answer
    if options.json:
        print_json(_fields(call, explanation, profile, excess))
    else:
        sys.stdout.writelines(one_line(line) for line in _head(call, profile, excess))
        sys.stdout.write("\n")
        sys.stdout.writelines(one_line(line) for line in explanation.render().splitlines())
        sys.stdout.flush()
    return 0


def gather(options: Any, *, reaching: bool = True) -> Call:
    """Find everybody who has a say about the call that `options` describe; `reaching` is of code that asks for hosts.

    What a call may do at most is what one that asks for hosts may do.
    """
    policy = load(options.policy)
    manifest = None if options.manifest is None else load_manifest(_read(options.manifest), file=options.manifest)
    grant = None if options.grant is None else _grant(options.grant)
    tool = options.tool or (grant.tool_name if grant else "") or (manifest.id if manifest else "")
    if not tool:
        raise UsageError("which tool?", fix="give --tool, --manifest or --grant")
    view = policy.view(tool, options.role)
    manifest_from = options.manifest
    if manifest is None:
        manifest = built_in_manifest(view.tool, view.capabilities, reaching=reaching)
        manifest_from = None if manifest is None else "built-in"
    if grant is None:
        grant = as_the_policy_gives(view)
    return Call(
        tool=view.tool,
        role=options.role,
        policy=policy,
        manifest=manifest,
        manifest_from=manifest_from,
        grant=grant,
        grant_from=options.grant or "as the policy gives it",
        request=read_overrides(_overrides(options.overrides)),
    )


def as_the_policy_gives(view: PolicyView) -> Grant:
    """Return what a caller without a grant of its own gets: all that the policy gives for the tool."""
    return Grant("", "", view.tool, "", view.capabilities, 0, view.budget, "", denials=view.denials)


def _overrides(pairs: Sequence[str]) -> dict[str, Any]:
    """Read `timeout_ms=30000`, `net.mode=none` and `capabilities=[…]` into the object a request would bring."""
    form: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"--override {pair!r} is not KEY=VALUE", fix="write it as --override timeout_ms=30000")
        if name in form or (name == "net.mode" and "net" in form):
            raise UsageError(f"--override {name} is given twice", fix="leave one of them out")
        try:
            value = strict_json.read(text.encode())
        except (ValueError, RecursionError):
            value = text
        form |= {"net": {"mode": value}} if name == "net.mode" else {name: value}
    return form


def _grant(path: str) -> Grant:
    try:
        form = strict_json.read(_read(path))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{path} is not JSON: {error}", reason="invalid_grant", fix="give the grant as a JSON object"
        ) from None
    return read_grant(form)


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}",
            reason="unreadable",
            fix="name a file that you may read",
        ) from error


def _head(call: Call, profile: Profile | None, excess: InvalidRequest | None) -> list[str]:
    """Say what the table is about, and what holds for the call as a whole."""
    lines = [
        f"tool      {call.tool}" + (f", role {call.role}" if call.role else ", no role"),
        f"policy    {call.policy.file} ({call.policy.policy_version_hash})",
        f"manifest  {call.manifest_from or 'none'}",
        f"grant     {call.grant_from}",
    ]
    if profile is None:
        return [*lines, f"refused   {excess}" + (f" (fix: {excess.fix})" if excess and excess.fix else "")]
    if profile.refusal:
        lines.append(f"nothing   is allowed: {_NOTHING_BECAUSE[profile.refusal]} ({profile.refusal})")
    lines += [f"clamped   {what}" for what in profile.clamped]
    lines.append(
        f"dangers   {', '.join(profile.dangers)}: each takes the word of a person"
        if profile.dangers
        else "dangers   none"
    )
    lines.append(f"consent   {_consent(profile)}")
    return [*lines, f"profile   {profile.profile_hash}"]


def _consent(profile: Profile) -> str:
    """Say whose word the call takes, and whether the policy's mode gives it beforehand."""
    source, why = needed(profile, declared_risk(profile))
    if source is None:
        return f"nobody's (mode {profile.mode})"
    standing = STANDING.get(profile.mode) if source is Source.POLICY else None
    given = "given by" if standing is not None else "not given by"
    return f"{source.value}: {why} ({given} mode {profile.mode})"


def _fields(
    call: Call, explanation: Explanation, profile: Profile | None, excess: InvalidRequest | None
) -> dict[str, Any]:
    return {
        **explanation.to_json(),
        "policy": call.policy.file,
        "manifest": call.manifest_from,
        "grant": call.grant_from,
        "refused": None if excess is None else {"code": excess.code, "reason": excess.reason, "error": str(excess)},
        "consent": None if profile is None else _consent(profile),
        "profile": None if profile is None else profile.to_json() | {"expires_at": profile.expires_at or None},
    }
