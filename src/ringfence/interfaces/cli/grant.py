"""`ringfence grant issue|attenuate|inspect|revoke`: authority for one call, as a token to hand on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ringfence.authority.caller import LOCAL
from ringfence.authority.credential import Credential, ProposedCall
from ringfence.authority.limit_names import read_limit
from ringfence.authority.narrowing import Narrowing
from ringfence.authority.units import seconds
from ringfence.capability.budget import INHERITED, UNLIMITED, read_budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import Denials
from ringfence.capability.form import parse
from ringfence.dataclass import replace
from ringfence.errors import Denied, InvalidRequest, RingfenceError, ToolDenied
from ringfence.evidence.effects import harmless_text
from ringfence.grants.deployment import audience_of
from ringfence.interfaces.cli.grant_desk import Desk, open_desk, shown_time
from ringfence.interfaces.cli.noting import keeps_records, note
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError

if TYPE_CHECKING:
    from ringfence.authority.grant import Grant
    from ringfence.authority.policy import PolicySnapshot

_MOST_READ = 1 << 17


def grant_command(words: Sequence[str]) -> int:
    """Carry out `ringfence grant …` and return the exit code."""
    parser = StrictParser(prog="ringfence grant")
    parser.add_argument("action", choices=tuple(_ACTIONS))
    action = parser.parse_args(list(words[:1])).action
    return _ACTIONS[action](words[1:])


def _issue(words: Sequence[str]) -> int:
    parser = _parser("issue")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--call", required=True)
    parser.add_argument("--policy")
    parser.add_argument("--role")
    parser.add_argument("--tenant", default=LOCAL)
    parser.add_argument("--subject", default=LOCAL)
    parser.add_argument("--audience", default="")
    parser.add_argument("--ttl", default="15m")
    _add_narrowing(parser)
    options = parser.parse_args(list(words))
    desk = open_desk()
    call = ProposedCall(options.tenant, options.subject, options.tool, options.call, options.audience)
    token, told = issue(
        desk,
        policy_of(options.policy),
        call,
        options.role,
        lifetime_ms=_milliseconds(options.ttl),
        narrowing=_narrowing(options),
    )
    note(desk.home, "grant.issued", told)
    _say_token(desk, token, json=options.json)
    return 0


def issue(
    desk: Desk, policy: PolicySnapshot, call: ProposedCall, role: str | None, *, lifetime_ms: int, narrowing: Narrowing
) -> tuple[str, dict[str, Any]]:
    """Sign what the policy gives a role for one call, narrowed; return the token and what its record says.

    Raises:
        ToolDenied: The policy gives nothing.
        InvalidRequest: More was asked for than it gives.
        Unavailable: There is no key to sign with.
    """
    credential = desk.issuer.issue(policy, call, role=role, lifetime_ms=lifetime_ms)
    _require_covered(policy, call.tool_name, role, narrowing)
    grant = credential.narrowed(narrowing).grant
    key = desk.keys.signing_key()
    told: dict[str, Any] = {
        **call_members(grant),
        "expires_at_ms": grant.expires_at,
        "key_id": key.key.key_id,
        "policy_version_hash": policy.policy_version_hash,
    }
    return desk.codec.encode(grant, key), told if role is None else {**told, "role": role}


def call_members(grant: Grant) -> dict[str, str]:
    """Return which call a grant is for, as records name it."""
    return {
        "tenant": grant.tenant,
        "subject_id": grant.subject_id,
        "tool_name": grant.tool_name,
        "call_id": grant.call_id,
        "grant_id": grant.nonce,
        "decision_key_fingerprint": grant.decision_key_fingerprint,
    }


def _attenuate(words: Sequence[str]) -> int:
    parser = _parser("attenuate")
    parser.add_argument("token")
    parser.add_argument("--ttl")
    _add_narrowing(parser)
    options = parser.parse_args(list(words))
    desk = open_desk()
    narrowing = _narrowing(options)
    if options.ttl is not None:
        narrowing = replace(narrowing, expires_at=desk.clock.now_ms() + _milliseconds(options.ttl))
    if narrowing == Narrowing():
        raise UsageError("nothing is to be taken away", fix="give --allow, --budget, --limit, --deny-… or --ttl")
    token = desk.codec.attenuate(_token(options.token), narrowing)
    if keeps_records(desk.home):  # whoever holds a grant may do this where nobody ever ran anything
        claimed = call_members(desk.codec.peek(token).grant)
        note(desk.home, "grant.attenuated", {name: harmless_text(said) for name, said in claimed.items()})
    _say_token(desk, token, json=options.json)
    return 0


def _inspect(words: Sequence[str]) -> int:
    parser = _parser("inspect")
    parser.add_argument("token")
    parser.add_argument("--call")
    options = parser.parse_args(list(words))
    desk = open_desk()
    token = _token(options.token)
    credential = desk.codec.peek(token)
    problem = _problem(desk, token, credential, options.call)
    fields = {"good": problem is None, **token_fields(credential)}
    if problem is not None:
        fields |= {"error": str(problem), "error_code": problem.code, "reason": problem.reason, "fix": problem.fix}
    if options.json:
        _say_json(fields)
    else:
        sys.stdout.writelines(_lines(fields))
    return 0 if problem is None else problem.answer.exit_code


def _revoke(words: Sequence[str]) -> int:
    parser = _parser("revoke")
    parser.add_argument("token", nargs="?")
    parser.add_argument("--id")
    parser.add_argument("--block")
    parser.add_argument("--subject")
    parser.add_argument("--tenant", default=LOCAL)
    options = parser.parse_args(list(words))
    named = [name for name in ("token", "id", "block", "subject") if getattr(options, name) is not None]
    if len(named) != 1:
        parser.error("give one of TOKEN, -, --id, --block and --subject")
    desk = open_desk()
    tenant: str = options.tenant
    match named[0]:
        case "token":
            # the signature only: what has expired or is revoked already may be revoked again
            grant = desk.codec.decode(_token(options.token), desk.keys.find).grant
            kind, name, tenant = "grant", grant.nonce, grant.tenant
            desk.revocations.revoke("grant", name, tenant=tenant)
        case "id":
            kind, name = "grant", options.id
            desk.revocations.revoke("grant", name, tenant=tenant)
        case "block":
            kind, name, tenant = "block", options.block, ""
            desk.revocations.revoke("block", name)
        case _:
            kind, name = "subject", options.subject
            desk.revocations.revoke("subject", name, tenant=tenant)
    # after it: a revocation counts even where it cannot be written down
    note(desk.home, "grant.revoked", {"revoked": kind, "name": harmless_text(name), "tenant": tenant or LOCAL})
    if options.json:
        _say_json({"revoked": kind, "name": name, "tenant": tenant})
    else:
        sys.stdout.write(f"revoked: {kind} {_printable(name)}\n")
    return 0


_ACTIONS: dict[str, Callable[[Sequence[str]], int]] = {
    "issue": _issue,
    "attenuate": _attenuate,
    "inspect": _inspect,
    "revoke": _revoke,
}


def _parser(action: str) -> StrictParser:
    parser = StrictParser(prog=f"ringfence grant {action}")
    parser.add_argument("--json", action="store_true")
    return parser


def _add_narrowing(parser: StrictParser) -> None:
    for option, name in (
        ("--allow", "allow"),
        ("--budget", "budget"),
        ("--limit", "limit"),
        ("--deny-path", "deny_path"),
        ("--deny-domain", "deny_domain"),
    ):
        parser.add_argument(option, dest=name, action="append", default=[])


def _narrowing(options: argparse.Namespace) -> Narrowing:
    budget = {kind: UNLIMITED if text == UNLIMITED else _whole(text) for kind, text in _pairs(options.budget)}
    return Narrowing(
        capabilities=Capabilities(map(parse, options.allow)) if options.allow else None,
        budget=read_budget(budget) if budget else INHERITED,
        limits=dict(read_limit(name, _number(text)) for name, text in _pairs(options.limit)),
        denials=Denials(paths=frozenset(options.deny_path), domains=frozenset(options.deny_domain)),
    )


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    for text in texts:
        if not all(text.partition("=")):
            raise UsageError(f"{text!r} is not NAME=VALUE", fix="write it as calls=3")
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a number") from None


def _milliseconds(text: str) -> int:
    return max(1, int(seconds(text) * 1000))


def policy_of(file: str | None) -> PolicySnapshot:
    """Return the policy of a file, or the built-in one."""
    if file is None:
        from ringfence.authority.policy import BUILT_IN

        return BUILT_IN
    from ringfence.authority.policy_source import PolicySource
    from ringfence.stores.policy_file import PolicyFile

    return PolicySource(PolicyFile(file)).current()


def _require_covered(policy: PolicySnapshot, tool: str, role: str | None, narrowing: Narrowing) -> None:
    """Sign nothing that is less than was asked for: whoever asked would believe to hold more."""
    view = policy.view(tool, role)
    if view.refusal:
        raise ToolDenied(f"the policy does not let {_whom(role)} use {tool!r}: {view.refusal}", reason="tool_denied")
    wanted = narrowing.capabilities
    if wanted is not None and not view.capabilities.covers(wanted):
        raise _beyond("allow names more than the policy allows", "see 'ringfence policy explain'")
    over = narrowing.budget.exceeding(view.budget)
    if over:
        raise _beyond(f"the budget of {over[0]} is more than the policy has", f"ask for less {over[0]}")


def _whom(role: str | None) -> str:
    return "anybody" if role is None else f"the role {role!r}"


def _beyond(problem: str, fix: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="limit_exceeds_ceiling", fix=fix)


def _token(word: str) -> str:
    if word != "-":
        return word
    return sys.stdin.buffer.read(_MOST_READ).decode("ascii", "replace").strip()


def _problem(desk: Desk, token: str, credential: Credential, call_id: str | None) -> RingfenceError | None:
    grant = credential.grant
    call = ProposedCall(
        grant.tenant,
        grant.subject_id,
        grant.tool_name,
        grant.call_id if call_id is None else call_id,
        audience_of(desk.home),
    )
    try:
        desk.verifier.admit(token, call)
    except Denied as denied:
        return denied
    return None


def _say_token(desk: Desk, token: str, *, json: bool) -> None:
    if json:
        _say_json({"token": token, **token_fields(desk.codec.peek(token))})
    else:
        sys.stdout.write(f"{token}\n")


def token_fields(credential: Credential) -> dict[str, Any]:
    """Return what is in a token, as it is shown."""
    form = credential.grant.to_json()
    form["grant_id"] = form.pop("nonce")
    form["capabilities"] = [str(item) for item in credential.grant.capabilities]
    form["key_id"] = credential.key.key_id if credential.key else None
    form["blocks"] = list(credential.revocation_ids)
    return form


def _lines(fields: dict[str, Any]) -> list[str]:
    import json

    lines: list[str] = []
    for name, value in fields.items():
        if name in ("expires_at", "not_before"):
            shown = shown_time(value)
        elif isinstance(value, list):
            shown = f"\n{'':26}".join(map(_printable, value)) or "none"
        else:
            shown = _printable(value if isinstance(value, str) else json.dumps(value))
        lines.append(f"{name:26}{shown}\n")
    return lines


def _printable(text: str) -> str:
    # a token is a stranger's text: it must not drive the terminal it is shown on
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _say_json(fields: dict[str, Any]) -> None:
    import json

    sys.stdout.write(json.dumps(fields) + "\n")
