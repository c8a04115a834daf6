"""The manifest of a tool (a skill's `manifest.json`): what it is, what it takes and gives, and the most it may need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ringfence.authority.catalogue import TOOLS
from ringfence.authority.levels import RiskLevel, SideEffect
from ringfence.authority.limit_names import Stated, nothing
from ringfence.capability.capabilities import NO_CAPABILITIES, Capabilities
from ringfence.dataclass import dataclass, field

# What a tool that does not say is taken for.
DEFAULT_SAFETY = RiskLevel.HIGH
DEFAULT_SIDE_EFFECTS = frozenset({SideEffect.PROCESS, SideEffect.WRITE})


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a skill runs in."""

    kind: str
    image: str
    entrypoint: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """A tool's own declaration; it can only ever take away from what policy and grant allow."""

    id: str
    name: str = ""
    description: str = ""
    schema_version: int = 1
    version: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=nothing)
    output_schema: Mapping[str, Any] = field(default_factory=nothing)
    runtime: Runtime | None = None
    capabilities: Capabilities = NO_CAPABILITIES
    limits: Stated = field(default_factory=nothing)
    safety_class: RiskLevel = DEFAULT_SAFETY
    side_effects: frozenset[SideEffect] = DEFAULT_SIDE_EFFECTS
    fetches: tuple[str, ...] = ()
    """The inputs that are URLs, which the host fetches before the run: the box itself has no network."""
    text: bytes = field(default=b"", repr=False)
    """The very bytes it was read from, which evidence keeps; a built-in one has none."""


@lru_cache(maxsize=1024)
def built_in_manifest(tool: str, within: Capabilities, *, reaching: bool = False) -> Manifest | None:
    """Return the manifest of a built-in tool: of `within`, the policy's own capabilities, those it is for.

    `reaching` is for code that asks for hosts.
    """
    known = TOOLS.get(tool)
    if known is None:
        return None
    return Manifest(
        id=tool,
        name=tool,
        version="built-in",
        capabilities=known.within(within, reaching=reaching),
        safety_class=known.risk,
        side_effects=known.side_effect | {SideEffect.NETWORK} if reaching else known.side_effect,
    )
