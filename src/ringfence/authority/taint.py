"""Taint: whose later calls are answered otherwise once a call has reached for what strangers wrote, and which of them.

A mark is put on names, and asked for by names; both are decided here. Nothing that a caller leaves out makes it
another: two calls of one subject that have no kind of name in common are taken for parts of the same work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import combinations
from types import MappingProxyType

from ringfence.authority.levels import Decision
from ringfence.dataclass import dataclass, field


class Outward(StrEnum):
    """What can carry something out of a session; each is a key of the policy's `taint`."""

    FETCH = "fetch"
    """A request or a page that is only read: its address can still say something."""
    SEND = "send"
    """A request with another method, with headers or with a body; a click or typed text."""
    CODE_NETWORK = "code_network"
    SECRET_USE = "secret_use"  # noqa: S105
    PORT_OPEN = "port_open"
    HOST_FILES = "host_files"
    PACKAGES = "packages"
    """The names of packages are told to an index."""
    COMMIT = "commit"


class Reach(StrEnum):
    """How far a mark is seen: in the session or conversation, by all that the subject does, or in the whole tenant."""

    SESSION = "session"
    SUBJECT = "subject"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class TaintPolicy:
    """What the policy says of calls that come after untrusted content; what it does not name stays allowed."""

    decisions: Mapping[Outward, Decision] = field(default_factory=lambda: MappingProxyType({}))
    reach: Reach = Reach.SESSION

    def about(self, uses: Iterable[Outward]) -> tuple[Outward | None, Decision]:
        """Return the strictest word about any of `uses`, and which of them it is about."""
        said = [(self.decisions.get(use, Decision.ALLOW), use) for use in uses]
        if not said:
            return None, Decision.ALLOW
        decision, use = max(said, key=lambda each: each[0].rank)
        return use, decision

    def to_json(self) -> dict[str, str]:
        """Return it as the policy's section says it."""
        return {"reach": str(self.reach)} | {str(use): str(said) for use, said in sorted(self.decisions.items())}


@dataclass(frozen=True, slots=True)
class Tainted:
    """That somebody's calls come after untrusted content: which execution reached for it first, where, and when."""

    by: str
    reached: str
    at_ms: int

    def to_dict(self) -> dict[str, str | int]:
        """Return it as plain JSON values."""
        return {"by": self.by, "reached": self.reached, "at_ms": self.at_ms}


@dataclass(frozen=True, slots=True)
class Whose:
    """By which names one call can be found again; a session's files are those of the project of its name."""

    subject_id: str
    projects: frozenset[str] = frozenset()
    conversation: str = ""

    def marked(self) -> tuple[str, ...]:
        """Return every name that a mark of this call is put on; how far it reaches is asked later, by each policy."""
        return (*self._own(), _subject(self.subject_id, self._kinds()), _TENANT)

    def asked(self, reach: Reach) -> tuple[str, ...]:
        """Return the names of which one mark is enough."""
        if reach is Reach.TENANT:
            return (_TENANT,)
        kinds = self._kinds()
        others = _SUBSETS if reach is Reach.SUBJECT else [each for each in _SUBSETS if not set(each) & set(kinds)]
        return (*self._own(), *(_subject(self.subject_id, each) for each in others))

    def _own(self) -> tuple[str, ...]:
        projects = tuple(f"project:{name}" for name in sorted(self.projects))
        return (*projects, f"conversation:{self.conversation}") if self.conversation else projects

    def _kinds(self) -> str:
        return ("p" if self.projects else "") + ("c" if self.conversation else "")


_TENANT = "tenant"
_SUBSETS = ["".join(each) for size in range(3) for each in combinations("pc", size)]


def _subject(subject_id: str, kinds: str) -> str:
    """Name a subject's calls that have just these kinds of names."""
    return f"subject/{kinds}:{subject_id}"
