"""A rule of the policy: a decision about commands, domains or paths, with examples that it must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from ringfence.authority.levels import Decision
from ringfence.capability.glob import matches_below, matches_denied, matches_text
from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.operation.path import workspace_path
from ringfence.operation.target import host_name


class Subject(StrEnum):
    """What a rule is about."""

    COMMAND = "command"
    DOMAIN = "domain"
    PATH = "path"


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` is a glob, or for a command its first words, each with its alternatives."""

    id: str
    decision: Decision
    subject: Subject
    pattern: str | tuple[frozenset[str], ...]
    justification: str = ""
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()
    scope: str = "call"
    line: int = field(default=0, compare=False)  # a rule that moved down the file says what it said before

    def matches(self, text: str) -> bool:
        """Whether the rule is about this command, domain or path."""
        if isinstance(self.pattern, tuple):
            return self.matches_words(text.split())
        try:
            if self.subject is Subject.DOMAIN:
                return matches_text(self.pattern, host_name(text))
            return self._matches_path(self.pattern, workspace_path(text))
        except InvalidRequest:
            # what cannot be read cannot be known to be something else
            return self.decision is not Decision.ALLOW

    def _matches_path(self, glob: str, path: str) -> bool:
        if self.decision is Decision.ALLOW:
            return matches_below(glob, path)
        # as a deny list does: without regard to case, and in every part where it names none
        return matches_denied(glob, path)

    def matches_words(self, words: Sequence[str]) -> bool:
        """Whether a command, already split into words, begins as the rule says."""
        if not isinstance(self.pattern, tuple) or len(words) < len(self.pattern):
            return False
        return all(word in wanted for word, wanted in zip(words, self.pattern, strict=False))

    @property
    def shown(self) -> str:
        """What it is about, as it could be written in a policy."""
        if isinstance(self.pattern, str):
            return self.pattern
        return " ".join("|".join(sorted(words)) for words in self.pattern)

    def wrong_examples(self) -> list[str]:
        """Say which of the rule's own examples it does not agree with."""
        return [f"match {text!r} does not match" for text in self.match if not self.matches(text)] + [
            f"not_match {text!r} matches" for text in self.not_match if self.matches(text)
        ]


def strictest(rules: Sequence[Rule], subject: Subject, text: str) -> Rule | None:
    """Return the rule that decides about `text`: of all that match, the one with the strictest decision."""
    about = [rule for rule in rules if rule.subject is subject and rule.matches(text)]
    return max(about, key=lambda rule: rule.decision, default=None)
