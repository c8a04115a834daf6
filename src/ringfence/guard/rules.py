"""The rules of the guard, one function each: a case in, an answer out, or None where the rule has nothing to say.

A rule that has something to say also says yes, so that the record shows who was asked. What a broker or the box
enforces by other means is judged here too: earlier, with a better reason, and never instead.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, cast

from ringfence.authority.levels import Decision, NetMode, RiskLevel
from ringfence.authority.profile import Profile
from ringfence.authority.rule import Rule as PolicyRule
from ringfence.authority.rule import Subject, strictest
from ringfence.capability.capabilities import Capabilities
from ringfence.dataclass import dataclass, replace
from ringfence.errors import CapabilityBlocked, Denied, InvalidRequest, PathTraversalError, ToolDenied
from ringfence.guard.consent import STANDING, Consent, Source, needed, request_hash
from ringfence.guard.deciding_rule import rule_about
from ringfence.guard.outward import outward_of
from ringfence.guard.verdict import Answer
from ringfence.operation import shell_start
from ringfence.operation.code import CodeRun, Language
from ringfence.operation.needs import HostReach, PortOpen, SecretUse
from ringfence.operation.path import workspace_path
from ringfence.operation.secret import references

if TYPE_CHECKING:  # the other operations have a `kind`; most runs are of code and need none of them
    from ringfence.authority.taint import Tainted
    from ringfence.operation.brokered import BrowserScreenshot, FsWrite, NetHttp, ProcExec
    from ringfence.operation.form import Operation

_ALLOW, _ASK, _DENY = Decision.ALLOW, Decision.ASK, Decision.DENY
# made once: most rules say yes to most calls
_YES = {
    name: Answer(name, _ALLOW)
    for name in (
        *("tool", "time", "place", "manifest", "grant", "deny_lists", "capability", "retrieval", "size"),
        *("environment", "commands", "consent", "network", "taint", "viewport", "lease"),
    )
}
WIDEST, HIGHEST = 1920, 1080
_TO_HOSTS = ("net_http", "browser_nav")
_LISTS = {
    "denied_path": "the policy keeps everybody from this path: see denied_paths",
    "denied_change": "the policy lets nobody change this path: see denied_changes",
}
# by these, `ls` of a script is whatever their author put there, another script is read before it, or a program that is
# on the list starts one that is not
_CHOOSING_PROGRAMS = frozenset(
    {
        *("PATH", "BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "BASH_LOADABLES_PATH"),
        *("GIT_ASKPASS", "GIT_EDITOR", "GIT_EXEC_PATH", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_PROXY_COMMAND"),
        *("GIT_SEQUENCE_EDITOR", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_TEMPLATE_DIR", "SSH_ASKPASS", "RSYNC_RSH"),
        *("PAGER", "MANPAGER", "LESSOPEN", "LESSCLOSE", "EDITOR", "VISUAL", "FCEDIT", "BROWSER"),
        *("TAR_OPTIONS", "MAKEFLAGS", "GNUMAKEFLAGS", "MAKEFILES"),
    }
)
_CHOOSING_PREFIXES = ("LD_", "GIT_CONFIG")


@dataclass(frozen=True, slots=True)
class Case:
    """All that a rule may look at."""

    profile: Profile
    operation: Operation
    now_ms: int
    risk: RiskLevel
    """The effective risk, what the static analysis found included."""
    declared_risk: RiskLevel
    """The same without the static analysis, which is a hint and asks nobody."""
    consent: Consent | None = None
    tainted: Tainted | None = None
    """What untrusted content the call comes after."""
    session_id: str | None = None
    """Whose files are meant, where the operation does not say so itself."""


Rule = Callable[[Case], Answer | None]


def tool(case: Case) -> Answer:
    """The policy lets this role use the tool at all."""
    if case.profile.refusal is None:
        return _YES["tool"]
    name, role = case.profile.tool_name or "this tool", case.profile.role
    if case.profile.refusal == "unknown_role":
        return Answer("tool", _DENY, ToolDenied.code, "tool_denied", f"the policy knows no role {role!r}")
    return Answer("tool", _DENY, ToolDenied.code, "tool_denied", f"the role {role!r} may not use {name}")


def time(case: Case) -> Answer:
    """The grant's time is not over."""
    end = case.profile.expires_at
    if end is not None and case.now_ms >= end:
        return Answer("time", _DENY, Denied.code, "expired", f"the grant ended at {end}, it is {case.now_ms}")
    return _YES["time"]


def place(case: Case) -> Answer | None:
    """A path leads to somewhere in the workspace, whoever allows what there."""
    if case.operation.domain != "fs":
        return None
    try:
        workspace_path(getattr(case.operation, "path", None))
    except InvalidRequest as error:
        reason = "path_traversal" if isinstance(error, PathTraversalError) else "path"
        return Answer("place", _DENY, CapabilityBlocked.code, reason, str(error))
    return _YES["place"]


def network(case: Case) -> Answer | None:
    """Code reaches hosts where the mode lets it, each of them granted, on no deny list and asked about by no rule."""
    operation, profile = case.operation, case.profile
    if not isinstance(operation, CodeRun) or not operation.domains:
        return None
    for host in operation.domains:
        if not profile.capabilities.allows(HostReach(host)):
            tool = profile.tool_name or "no tool"
            detail = f"the policy gives {tool} no way to {host}: see network_access and allowed_domains"
            return Answer("network", _DENY, CapabilityBlocked.code, "domain", detail)
        if profile.denials.denies_domain(host):
            return Answer("network", _DENY, CapabilityBlocked.code, "blacklist", f"{host} is on a deny list")
    if profile.net_mode < NetMode.ALLOWLIST:
        detail = f"code reaches hosts under net_mode {NetMode.ALLOWLIST}, and it is {profile.net_mode}"
        return Answer("network", _DENY, CapabilityBlocked.code, "domain", detail)
    for host in operation.domains:
        rule = strictest(profile.rules, Subject.DOMAIN, host.removeprefix("*."))
        if rule is not None and rule.decision is not _ALLOW:
            return _by_rule(case, rule, host)
    return _YES["network"]


def manifest(case: Case) -> Answer:
    """The tool's manifest declares such operations."""
    refusal = case.profile.declared.refusal(case.operation)
    if refusal is None:
        return _YES["manifest"]
    secret = _kept_secret(case.operation, case.profile.declared)
    if secret is not None:
        detail = f"the policy lends no secret {secret} to {case.profile.tool_name or 'no tool'}: see secrets"
        return Answer("manifest", _DENY, CapabilityBlocked.code, "secret", detail)
    port = _closed_port(case.operation, case.profile.declared)
    if port is not None:
        detail = f"the policy opens no port {port} for {case.profile.tool_name or 'no tool'}: see open_ports"
        return Answer("manifest", _DENY, CapabilityBlocked.code, "port", detail)
    if refusal == "path":  # it does declare such operations, elsewhere
        return Answer("manifest", _DENY, CapabilityBlocked.code, "path", "the tool may do this at other paths only")
    if case.operation.kind in _TO_HOSTS and case.profile.declared.of("net.http"):  # the same, to other hosts
        reason = _reason_of(case.operation, refusal)
        return Answer("manifest", _DENY, CapabilityBlocked.code, reason, f"the {refusal} is none that is listed")
    if case.operation.kind == "proc_exec" and case.profile.declared.of("proc.exec"):
        return Answer("manifest", _DENY, ToolDenied.code, "argument", refusal)
    detail = (
        f"the manifest of {case.profile.tool_name or 'no tool'}, within the policy, has no such {case.operation.kind}"
    )
    return Answer("manifest", _DENY, ToolDenied.code, "manifest_mismatch", detail)


def grant(case: Case) -> Answer:
    """The grant gives it."""
    refusal = case.profile.granted.refusal(case.operation)
    if refusal is None:
        return _YES["grant"]
    return Answer("grant", _DENY, Denied.code, "not_granted", f"the grant does not give it: {refusal}")


def capability(case: Case) -> Answer:
    """It is within what ceiling, policy, manifest, grant and request allow together."""
    refusal = case.profile.capabilities.refusal(case.operation)
    if refusal is None:
        return _YES["capability"]
    secret = _kept_secret(case.operation, case.profile.capabilities)
    if secret is not None:
        return Answer("capability", _DENY, CapabilityBlocked.code, "secret", f"the secret {secret} is not granted")
    port = _closed_port(case.operation, case.profile.capabilities)
    if port is not None:
        return Answer("capability", _DENY, CapabilityBlocked.code, "port", f"port {port} is not granted")
    if case.operation.kind == "proc_exec":
        return Answer("capability", _DENY, ToolDenied.code, "argument", refusal)
    return Answer("capability", _DENY, CapabilityBlocked.code, _reason_of(case.operation, refusal), refusal)


def deny_lists(case: Case) -> Answer:
    """It is on no deny list."""
    refusal = case.profile.denials.refusal(case.operation)
    if refusal is None:
        return _YES["deny_lists"]
    reason = "port" if refusal == "denied_port" else "blacklist"
    return Answer("deny_lists", _DENY, CapabilityBlocked.code, reason, _LISTS.get(refusal, refusal))


def retrieval(case: Case) -> Answer | None:
    """Below an allow-list a request only ever reads: it brings no header and no body that could carry something out."""
    if case.operation.kind != "net_http" or case.profile.net_mode >= NetMode.ALLOWLIST:
        return None
    request = cast("NetHttp", case.operation)
    if request.headers or request.body is not None:
        detail = f"at the level {case.profile.net_mode} a request brings neither headers nor a body"
        return Answer("retrieval", _DENY, CapabilityBlocked.code, "request_content", detail)
    return _YES["retrieval"]


def size(case: Case) -> Answer | None:
    """What is to be written or sent is no larger than one operation may move."""
    if case.operation.kind == "fs_write":
        amount = len(cast("FsWrite", case.operation).content)
    elif case.operation.kind == "net_http":
        amount = len(cast("NetHttp", case.operation).body or b"")
    else:
        return None
    most = case.profile.limits.max_bytes_out
    if amount > most:
        detail = f"{amount} bytes are more than the {most} one operation may write or send"
        return Answer("size", _DENY, CapabilityBlocked.code, "too_large", detail)
    return _YES["size"]


def viewport(case: Case) -> Answer | None:
    """A picture is of a screen no larger than people have: a larger one tells more, and costs more, than looking."""
    if case.operation.kind != "browser_screenshot":
        return None
    picture = cast("BrowserScreenshot", case.operation)
    width = 1 if picture.width is None else picture.width
    height = 1 if picture.height is None else picture.height
    if not 0 < width <= WIDEST or not 0 < height <= HIGHEST:
        detail = f"{picture.width} by {picture.height} is not within {WIDEST} by {HIGHEST}"
        return Answer("viewport", _DENY, CapabilityBlocked.code, "viewport", detail)
    return _YES["viewport"]


def environment(case: Case) -> Answer | None:
    """The variables it brings are ones that the policy lets in."""
    allowed = case.profile.env_allow
    if not isinstance(case.operation, CodeRun) or not case.operation.env or allowed is None:
        return None
    for name in case.operation.env:
        if not any(fnmatchcase(name, pattern) for pattern in allowed):
            detail = f"the policy lets no variable {name} in"
            return Answer("environment", _DENY, CapabilityBlocked.code, "blocked", detail)
    return _YES["environment"]


def commands(case: Case) -> Answer | None:
    """The programs a command starts are on the allow list, if there is one, and on no deny list.

    A hint and an early refusal: the box is the boundary (C14).
    """
    operation, profile = case.operation, case.profile
    if profile.allowed_commands is None and not profile.denials.commands:
        return None
    if operation.kind == "proc_exec":  # which programs, its capability says; here, what they would start in turn
        return _started_by(cast("ProcExec", operation), profile)
    if not isinstance(operation, CodeRun) or operation.language is not Language.BASH:
        return None
    from ringfence.risk.shell import CommandLists, CommandVerdict, judge_command

    changing = sorted(
        name for name in operation.env if name in _CHOOSING_PROGRAMS or name.startswith(_CHOOSING_PREFIXES)
    )
    if changing == [shell_start.VARIABLE] and shell_start.is_ours(operation):
        changing = []
    if changing:
        detail = f"the policy lists commands, and {changing[0]} would decide what they are"
        return Answer("commands", _DENY, ToolDenied.code, "argument", detail)
    lists = CommandLists(profile.allowed_commands, tuple(sorted(profile.denials.commands)))
    judgement = judge_command(operation.code, lists)
    doubtful = judgement.verdict is CommandVerdict.UNKNOWN and profile.allowed_commands is not None
    # a list that could not be held against the script must not look as if it had been
    if judgement.verdict is CommandVerdict.DENIED or doubtful or judgement.unread:
        return Answer("commands", _DENY, ToolDenied.code, "argument", "; ".join(judgement.reasons[:3]))
    return _YES["commands"]


def _started_by(process: ProcExec, profile: Profile) -> Answer:
    from ringfence.risk.shell import CommandLists, CommandVerdict, judge_argv

    denied = CommandLists(None, tuple(sorted(profile.denials.commands)))
    judgement = judge_argv((process.tool, *process.args), denied)
    if judgement.verdict is CommandVerdict.DENIED or (judgement.unread and denied.denied):
        return Answer("commands", _DENY, ToolDenied.code, "argument", "; ".join(judgement.reasons[:3]))
    return _YES["commands"]


def policy_rules(case: Case) -> Answer | None:
    """The policy's own rules about commands, domains and paths."""
    found = rule_about(case.operation, case.profile.rules)
    return None if found is None else _by_rule(case, *found)


def _by_rule(case: Case, rule: PolicyRule, text: str) -> Answer:
    why = f"rule {rule.id} decides {rule.decision} about {text[:200]!r}"
    detail = f"{why}: {rule.justification}" if rule.justification else why
    if rule.decision is _DENY:
        return Answer(f"rule {rule.id}", _DENY, ToolDenied.code, "tool_denied", detail)
    if rule.decision is _ASK and not _agreed(case, Source(rule.scope)):
        return Answer(f"rule {rule.id}", _ASK, Denied.code, "consent_required", detail)
    return Answer(f"rule {rule.id}", _ALLOW)


def consent(case: Case) -> Answer:
    """Whoever must agree has agreed: the policy's mode to what is standard, a person to this call if it is critical."""
    source, why = needed(case.profile, case.declared_risk)
    return _YES["consent"] if source is None else _consented(case, source, why)


def lease(case: Case) -> Answer | None:
    """A secret is lent for one run; for a whole conversation only where the policy says so and a person agrees."""
    if not isinstance(case.operation, CodeRun):
        return None
    for ask in case.operation.secrets:
        if ask.lasting and ask.name not in case.profile.lasting_secrets:
            detail = f"the policy lends the secret {ask.name} for one run: see scope under secrets"
            return Answer("lease", _DENY, CapabilityBlocked.code, "secret", detail)
        if ask.lasting and not _agreed(case, Source.CALL):
            detail = f"the secret {ask.name} for the whole conversation: a person has to agree to this very call"
            return Answer("lease", _ASK, Denied.code, "consent_required", detail)
    return _YES["lease"] if case.operation.secrets else None


def taint(case: Case) -> Answer | None:
    """What could carry something out, after untrusted content was reached for, is as the policy's `taint` says.

    Only a person's word for this very call counts: what was agreed to before was agreed to without the content.
    """
    if case.tainted is None or case.profile.taint is None:
        return None
    use, decision = case.profile.taint.about(outward_of(case.operation))
    if decision is _ALLOW or (decision is _ASK and _agreed(case, Source.CALL)):
        return _YES["taint"]
    what = f"{use} after untrusted content from {case.tainted.reached} ({case.tainted.by})"
    if decision is _DENY:
        return Answer("taint", _DENY, CapabilityBlocked.code, "tainted", f"the policy denies {what}")
    return Answer("taint", _ASK, Denied.code, "consent_required", f"{what}: a person has to agree to this very call")


RULES: tuple[Rule, ...] = (
    *(tool, time, place, network, manifest, grant, deny_lists, capability, retrieval, size, viewport),
    *(environment, commands, policy_rules, lease, taint, consent),
)


def _consented(case: Case, least: Source, why: str) -> Answer:
    if _agreed(case, least):
        return _YES["consent"]
    given = case.consent
    if given is not None and given.expires_at_ms is not None and case.now_ms >= given.expires_at_ms:
        return Answer("consent", _ASK, Denied.code, "consent_expired", f"{why}; the consent given has expired")
    if given is not None and given.request_hash and given.request_hash != _request_hash(case):
        return Answer("consent", _ASK, Denied.code, "consent_mismatch", f"{why}; the consent is for another request")
    return Answer("consent", _ASK, Denied.code, "consent_required", why)


_WEIGHT = {Source.POLICY: 0, Source.AUTO: 0, Source.SESSION: 1, Source.CALL: 2}


def _agreed(case: Case, least: Source) -> bool:
    """Whether there is a consent of at least this weight, in time, and for this request if it names one."""
    for given in (case.consent, STANDING.get(case.profile.mode)):
        if given is None or _WEIGHT[given.source] < _WEIGHT[least]:
            continue
        if given.expires_at_ms is not None and case.now_ms >= given.expires_at_ms:
            continue
        named = given.request_hash
        if given.source is Source.CALL and not named:
            continue  # a person's word for a call names the call
        if not named or named == _request_hash(case):
            return True
    return False


def _request_hash(case: Case) -> str:
    return request_hash(case.operation, case.session_id)


def _closed_port(operation: Operation, allowed: Capabilities) -> int | None:
    """Return the first port that code asks for and may not have, where nothing else is wrong with it."""
    if not isinstance(operation, CodeRun) or not operation.ports or not allowed.allows(replace(operation, ports=())):
        return None
    return next((port for port in operation.ports if not allowed.allows(PortOpen(port))), None)


def _kept_secret(operation: Operation, allowed: Capabilities) -> str | None:
    """Return the first secret that is asked for and may not be had, where nothing else is wrong."""
    if isinstance(operation, CodeRun):
        names = tuple(ask.name for ask in operation.secrets)
        without: Operation = replace(operation, secrets=())
    elif operation.kind == "net_http":
        names = references(operation.headers)  # type: ignore[union-attr]
        without = replace(operation, headers={})  # type: ignore[arg-type]
    else:
        return None
    if not names or not allowed.allows(without):
        return None
    return next((name for name in names if not allowed.allows(SecretUse(name))), None)


def _reason_of(operation: Operation, refusal: str) -> str:
    match operation.kind:
        case "code_run":
            return "language"
        case "net_http" | "browser_nav":
            return refusal if refusal in ("port", "scheme", "method", "path", "scope") else "domain"
        case _:
            if operation.domain == "browser" and refusal == "scope":
                return "scope"
            return "path" if hasattr(operation, "path") else "blocked"
