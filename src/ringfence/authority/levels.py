"""The ordered words of the law: how dangerous, how much network, how isolated; to compare two is to compare them."""

from __future__ import annotations

from enum import Enum, StrEnum


class Rising(Enum):
    """Values in rising order; not text, because "critical" comes before "safe" in the alphabet."""

    rank: int

    def __init__(self, _word: str) -> None:
        """Members are made in the order they are written."""
        self.rank = len(type(self).__members__)

    # all four, where one could be made of another: every rule of every call is compared by them
    def __lt__(self, other: object) -> bool:
        return self.rank < other.rank if isinstance(other, type(self)) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.rank <= other.rank if isinstance(other, type(self)) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.rank > other.rank if isinstance(other, type(self)) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.rank >= other.rank if isinstance(other, type(self)) else NotImplemented

    # there is one object of each, and what was worked out for it is found again by it
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return str(self._value_)


class RiskLevel(Rising):
    """What a call may do to the world; a manifest's safety class is one of low, medium and high."""

    SAFE = "safe"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


SAFETY_CLASSES = (RiskLevel.LOW, RiskLevel.MEDIUM, RiskLevel.HIGH)


class NetMode(Rising):
    """How much network there may be at all; which hosts is a matter of capabilities."""

    NONE = "none"
    SAFE_RETRIEVAL = "safe_retrieval"
    ALLOWLIST = "allowlist"
    UNRESTRICTED = "unrestricted"


class FilesystemAccess(Rising):
    """Which files there may be at all."""

    NONE = "none"
    WORKSPACE_ONLY = "workspace_only"
    HOST = "host"


class IsolationLevel(Rising):
    """How much must stand between an operation and the host."""

    BROKER = "broker"
    PROCESS = "process"
    OS = "os"
    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"


class Commit(Rising):
    """What becomes of what a run changed in its project: kept, kept once somebody says so, or only shown."""

    ALWAYS = "always"
    ASK = "ask"
    NEVER = "never"


class SideEffect(StrEnum):
    """What a tool says it does to the world."""

    NONE = "none"
    READ = "read"
    WRITE = "write"
    NETWORK = "network"
    FILESYSTEM = "filesystem"
    BROWSER = "browser"
    PROCESS = "process"


class ApprovalMode(StrEnum):
    """When a person is asked; what is never allowed is not changed by it."""

    COWORK = "cowork"
    ASK = "ask"
    STRICT_ASK = "strict-ask"
    AUTO = "auto"
    NEVER_ASK = "never-ask"


class Decision(Rising):
    """What a rule says; of several the strictest counts."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"
