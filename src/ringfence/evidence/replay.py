"""Decisions made again from their records: by the policy of then, which must say the same, or by one not yet in use.

Nothing here decides: the profile comes from the builder of every call and the verdict from the guard of every call.
What a record or a missing document leaves open is `cannot_tell`, never `same`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ringfence.authority.caller import NOBODY_ELSE, Caller
from ringfence.authority.grant import Grant, read_grant
from ringfence.authority.levels import Decision, RiskLevel
from ringfence.authority.local import Issue, LocalAuthority, tool_of
from ringfence.authority.policy import BUILT_IN, PolicySnapshot
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile_builder import NO_REQUEST, ProfileBuilder
from ringfence.authority.request_form import request_from_json
from ringfence.authority.rule import Subject
from ringfence.authority.taint import Tainted
from ringfence.capability.canonical import digest_of
from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest
from ringfence.evidence.described import CannotTell, Record, called_of, operation_of
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.guard.outward import outward_of
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.guard.rules import RULES
from ringfence.operation.code import CodeRun, Language
from ringfence.risk.assessment import RiskAssessment

if TYPE_CHECKING:
    from ringfence.authority.layers import Request
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.profile import Profile
    from ringfence.guard.verdict import Verdict
    from ringfence.operation.form import Operation

Documents = Callable[[str], "str | None"]
"""The text of a document by its digest, `sha256:…`, or nothing."""
Assess = Callable[[str, str], RiskAssessment]

DECISIONS: Final = ("exec.begin", "decision.denied")
_GUARD = frozenset(rule.__name__ for rule in RULES) | {"request", "nobody"}
_MOST_KEPT = 256


class Agreement(StrEnum):
    """Whether a decision made again is the decision that was made."""

    SAME = "same"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True)
class Judged:
    """One decision: `allow`, `ask` or `deny`, and of a refusal the rule, its code and its reason."""

    decision: str
    rule: str = ""
    code: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return self.decision if not self.reason else f"{self.decision} ({self.rule or 'no rule'}: {self.reason})"


@dataclass(frozen=True, slots=True)
class Rederived:
    """What was decided, what would be decided, and whether that is the same."""

    agreement: Agreement
    then: Judged | None
    now: Judged | None
    rule: str = ""
    """The rule that decides now, or decided then where now everything is allowed."""
    why: str = ""
    exec_id: str = ""
    tool: str = ""
    subject: str = ""


class _Open(Exception):
    """The record does not say, and this is why."""


def as_the_policy_gives(policy: PolicySnapshot, tool: str, role: str | None, call_id: str, caller: Caller) -> Grant:
    """Mint what a process without another authority mints; when it ends is the record's to say."""
    view = policy.view(tool, role)
    who = caller.tenant, caller.subject_id
    return Grant(*who, tool, call_id, view.capabilities, 1 << 52, view.budget, "", denials=view.denials)


def rederive(
    record: Record,
    documents: Documents,
    candidate_policy: PolicySnapshot | None = None,
    *,
    content: bytes | None = None,
) -> Rederived:
    """Make one decision again; for many records a `Replay` reads each document once."""
    return Replay(documents, candidate_policy).rederive(record, content)


class Replay:
    """Makes recorded decisions again, under their own policies or a candidate."""

    def __init__(
        self,
        documents: Documents,
        candidate: PolicySnapshot | None = None,
        *,
        issue: Issue = as_the_policy_gives,
        assess: Assess | None = None,
    ) -> None:
        """With `assess` a program whose content is there is assessed again; else what was found then counts."""
        self._documents = documents
        self._candidate = candidate
        self._issue = issue
        self._assess = assess
        self._builder = ProfileBuilder()
        self._read: dict[tuple[str, str], Any] = {}

    def rederive(self, record: Record, content: bytes | None = None) -> Rederived:
        """Decide again about the call that `record` is of."""
        then = _then(record)
        try:
            if then is None:
                raise _Open("the record is of no decision")
            return self._compared(record, then, content)
        except _Open as reason:
            return _found(record, Agreement.CANNOT_TELL, then, None, str(reason))

    def _compared(self, record: Record, then: Judged, content: bytes | None) -> Rederived:
        operation = operation_of(record, content)
        if isinstance(operation, CannotTell):
            raise _Open(operation.reason)
        policy = self._candidate or self._policy(record)
        try:
            profile = self._profile(record, operation, policy)
        except InvalidRequest as error:
            now = Judged("deny", "request", error.code, error.reason or "")
            return self._agreed(record, then, now, None)
        if content is None:
            missing = short_of(record, profile, operation)
            if missing is not None:
                raise _Open(missing)
        verdict = self._verdict(record, profile, operation, content)
        deciding = verdict.deciding
        now = (
            Judged("allow")
            if deciding is None
            else Judged(str(deciding.decision), deciding.rule, deciding.code, deciding.reason)
        )
        effective = _level(record, "effective")
        if self._candidate is None and effective is not None and effective is not verdict.risk:
            why = f"the risk was {effective}, and is now {verdict.risk}"
            return _found(record, Agreement.DIFFERS, then, now, why)
        return self._agreed(record, then, now, profile)

    def _agreed(self, record: Record, then: Judged, now: Judged, profile: Profile | None) -> Rederived:
        if now.decision != then.decision or (self._candidate is None and not _same_refusal(then, now)):
            if then.decision != "allow" and not _is_the_guards(then, now):
                raise _Open(f"it was refused with {then.reason or then.code}, which no policy decides")
            return _found(record, Agreement.DIFFERS, then, now, f"then {then}, now {now}")
        if self._candidate is None and profile is not None and record.get("profile_hash") != profile.profile_hash:
            if "profile_hash" not in record:
                raise _Open("the record does not say which profile held")
            return _found(record, Agreement.DIFFERS, then, now, "the same documents now make another profile")
        return _found(record, Agreement.SAME, then, now, "")

    def _verdict(self, record: Record, profile: Profile, operation: Operation, content: bytes | None) -> Verdict:
        recorded = _level(record, "assessed")

        def assess(code: str, language: str) -> RiskAssessment:
            if content is not None and (self._assess is not None or recorded is None):
                return (self._assess or _analysis)(code, language)
            if recorded is None:
                raise _Open("the record does not say what the analysis found")
            return RiskAssessment(recorded, language)

        now_ms = record.get("produced_at_ms", record.get("time_ms"))
        if type(now_ms) is not int:
            raise _Open("the record does not say when it was decided")
        return PolicyGuard(assess).validate(
            profile,
            operation,
            now_ms=now_ms,
            consent=_consent(record, operation),
            tainted=_tainted(record, profile, operation),
        )

    def _policy(self, record: Record) -> PolicySnapshot:
        """Return the policy the decision was made under; a record that names two, or none, is not to be believed."""
        named = _documents_of(record).get("policy") or record.get("policy_version_hash")
        if not isinstance(named, str) or record.get("policy_version_hash", named) != named:
            raise _Open("the record does not name one policy")
        if named == BUILT_IN.policy_version_hash:
            return BUILT_IN
        snapshot: PolicySnapshot = self._document("policy", named, lambda text: load_policy(text.encode(), named))
        return snapshot

    def _profile(self, record: Record, operation: Operation, policy: PolicySnapshot) -> Profile:
        named = _documents_of(record)
        role, call_id = record.get("role"), str(record.get("call_id", ""))
        if role is not None and not isinstance(role, str):
            raise _Open("the record does not name its role")
        granted: Grant | None = None
        manifest: Manifest | None = None
        request: Request = NO_REQUEST
        if "grant" in named:
            granted = self._document("grant", named["grant"], lambda text: read_grant(json.loads(text)))
        if "request" in named:
            request = self._document("request", named["request"], lambda text: request_from_json(json.loads(text)))
        if "manifest" in named:
            manifest = self._document("manifest", named["manifest"], _read_manifest)
            tool = str(record.get("tool_name", manifest.id if manifest else ""))
            grant = granted or self._issue(policy, tool, role, call_id, NOBODY_ELSE)
            profile = self._builder.build(grant, manifest, policy, tool=tool, role=role, request=request)
        else:
            if record.get("tool_name") != tool_of(operation):
                raise _Open("it is a call of a tool whose manifest the record does not name")
            authority = LocalAuthority(lambda: policy, self._issue, self._builder)
            profile = authority.profile(operation, call_id=call_id, role=role, request=request, granted=granted)
        ends = record.get("expires_at_ms")
        return profile if type(ends) is not int else replace(profile, expires_at=ends)

    def _document(self, kind: str, digest: str, read: Callable[[str], Any]) -> Any:
        known = self._read.get((kind, digest))
        if known is not None:
            return known
        text = self._documents(digest)
        if text is None:
            raise _Open(f"the {kind} it was decided under is not in the store")
        if digest_of(text.encode("utf-8", "surrogatepass")) != digest:
            raise _Open(f"the {kind} in the store is not the one it was decided under")
        try:
            known = read(text)
        except (InvalidRequest, ValueError, RecursionError):
            raise _Open(f"this version cannot read the {kind} it was decided under") from None
        if len(self._read) >= _MOST_KEPT:
            self._read.clear()
        self._read[kind, digest] = known
        return known


def short_of(record: Record, profile: Profile, operation: Operation) -> str | None:
    """Return why this profile looks at something that only the content tells, or nothing when it does not."""
    rules = [rule.pattern for rule in profile.rules if rule.subject is Subject.COMMAND and _is_words(rule.pattern)]
    lists = [tuple(command.split()) for command in profile.denials.commands]
    if isinstance(operation, CodeRun):
        if operation.language is not Language.BASH or not (rules or lists or profile.allowed_commands is not None):
            return None
        summed_up = called_of(record)
        if summed_up is None:
            return "its script could not be summed up, and the content was not kept"
        from ringfence.evidence import programs

        first_words = [(word, *("" for _ in pattern[1:])) for pattern in rules for word in pattern[0]]
        return programs.short_of(summed_up, allowed=profile.allowed_commands, denied=[*lists, *first_words])
    if operation.kind != "proc_exec" or not record["op"]["arg_count"]:
        return None
    from ringfence.capability.process import ProcExec

    tool = record["op"]["tool"]
    looked_at = any(len(entry) > 1 and entry[0] == tool for entry in lists) or any(
        len(pattern) > 1 and tool in pattern[0] for pattern in rules
    )
    for side in (profile.declared, profile.granted, profile.capabilities):
        looked_at |= any(
            isinstance(item, ProcExec) and item.tool == tool and bool(item.templates) for item in side.of("proc.exec")
        )
    return "a list, rule or template looks at its arguments, and they were not kept" if looked_at else None


def _is_words(pattern: object) -> bool:
    return isinstance(pattern, tuple) and bool(pattern)


def _same_refusal(then: Judged, now: Judged) -> bool:
    if then.rule:
        return (then.rule, then.code, then.reason) == (now.rule, now.code, now.reason)
    return (then.code, then.reason) == (now.code, now.reason)


def _is_the_guards(then: Judged, now: Judged) -> bool:
    if then.rule in _GUARD or then.rule.startswith("rule "):
        return True
    return not then.rule and (then.code, then.reason) == (now.code, now.reason)


def _then(record: Record) -> Judged | None:
    match record.get("type"):
        case "exec.begin":
            return Judged("allow")
        case "decision.denied":
            rule, code, reason = (str(record.get(name, "")) for name in ("rule", "error_code", "reason"))
            asked = record.get("decision") == "ask" or ("decision" not in record and reason.startswith("consent_"))
            return Judged(str(Decision.ASK if asked else Decision.DENY), rule, code, reason)
        case _:
            return None


def _consent(record: Record, operation: Operation) -> Consent | None:
    """Return what somebody agreed to; what the policy's mode agrees to, the guard finds in the policy."""
    form = record.get("consent")
    if not isinstance(form, Mapping) or not form.get("given"):
        return None
    try:
        source = Source(form["source"])
    except (KeyError, ValueError):
        raise _Open("the record does not say who agreed") from None
    named = form.get("request_hash", "")
    if named:
        # the operation was rebuilt without its content: what the consent fitted then, it fits now
        named = request_hash(operation) if form.get("fits") is True else f"not {named}"
    ends = form.get("expires_at_ms")
    return Consent(source, named, ends if type(ends) is int else None)


def _tainted(record: Record, profile: Profile, operation: Operation) -> Tainted | None:
    """Return what the call came after; where the policy of then did not ask, nobody knows."""
    form = record.get("tainted")
    if form is None and profile.taint is not None and profile.taint.about(outward_of(operation))[1] > Decision.ALLOW:
        raise _Open("the record does not say whether it came after untrusted content")
    if not form:
        return None
    try:
        return Tainted(str(form["by"]), str(form["reached"]), int(form["at_ms"]))
    except (KeyError, TypeError, ValueError):
        raise _Open("the record does not say which untrusted content it came after") from None


def _documents_of(record: Record) -> Mapping[str, str]:
    named = record.get("documents", {})
    if not isinstance(named, Mapping) or not all(isinstance(digest, str) for digest in named.values()):
        raise _Open("the record does not name its documents")
    return named


def _level(record: Record, name: str) -> RiskLevel | None:
    levels = record.get("risk", {})
    try:
        return RiskLevel(levels[name]) if name in levels else None
    except (TypeError, ValueError):
        raise _Open("the record does not say the risk in words this version knows") from None


def _read_manifest(text: str) -> Manifest:
    from ringfence.authority.manifest_reader import load_manifest

    return load_manifest(text.encode())


def _analysis(code: str, language: str) -> RiskAssessment:
    from ringfence.risk.policy import UnifiedRiskPolicy

    return UnifiedRiskPolicy.assess(code, language)


def _found(record: Record, agreement: Agreement, then: Judged | None, now: Judged | None, why: str) -> Rederived:
    rule = (now.rule if now is not None and now.rule else then.rule if then is not None else "") or ""
    return Rederived(
        agreement,
        then,
        now,
        rule,
        why,
        str(record.get("exec_id", record.get("call_id", ""))),
        str(record.get("tool_name", "")),
        str(record.get("subject_id", "")),
    )
