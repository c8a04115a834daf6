"""What the static analysis saw, as evidence keeps it; a program that could not be read is never called safe."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ringfence.authority.levels import RiskLevel
from ringfence.dataclass import dataclass

# Enough to explain a verdict; a program of ten thousand evals is not ten thousand times more dangerous than one.
MAX_SIGNS = 64


class Refusal(StrEnum):
    """Why a program was not assessed; its level is then HIGH or above, whatever it contains."""

    UNPARSABLE = "unparsable"
    TOO_LARGE = "too_large"
    TOO_COMPLEX = "too_complex"
    GRAMMAR_MISSING = "grammar_missing"
    UNKNOWN_LANGUAGE = "unknown_language"


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing a program would do or hide, and where."""

    pattern: str
    level: RiskLevel
    why: str
    line: int = 0

    @property
    def reason(self) -> str:
        """Say it in one line."""
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.pattern}: {self.why}"


@dataclass(frozen=True, slots=True)
class RiskAssessment:
    """The level of one program in one language, and every sign that led to it."""

    level: RiskLevel
    language: str
    signs: tuple[Sign, ...] = ()
    refusal: Refusal | None = None

    @property
    def detected_patterns(self) -> tuple[str, ...]:
        """Name what was seen, each pattern once, in the order of the program."""
        return tuple(dict.fromkeys(sign.pattern for sign in self.signs))

    @property
    def patterns(self) -> tuple[str, ...]:
        """The same as `detected_patterns`."""
        return self.detected_patterns

    @property
    def kinds(self) -> tuple[str, ...]:
        """Say what was seen in our own words alone, for evidence: a pattern may quote a word of the program."""
        return tuple(sorted({sign.pattern if sign.pattern in _REFUSALS else sign.why for sign in self.signs}))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Say where each sign is and what it means."""
        return tuple(sign.reason for sign in self.signs)

    def to_dict(self) -> dict[str, Any]:
        """Return the assessment as plain JSON values."""
        return {
            "level": self.level.value,
            "language": self.language,
            "detected_patterns": list(self.detected_patterns),
            "reasons": list(self.reasons),
            "refusal": None if self.refusal is None else self.refusal.value,
        }


def assessed(language: str, signs: list[Sign]) -> RiskAssessment:
    """Return the assessment of a program that was read to its end."""
    return RiskAssessment(_highest(signs, RiskLevel.SAFE), language, _shown(signs))


def refused(language: str, refusal: Refusal, why: str, signs: list[Sign] | None = None) -> RiskAssessment:
    """Return the assessment of a program that could not be read; `signs` are what was seen of it all the same."""
    pattern = _pattern_of(refusal)
    everything = [Sign(pattern, RiskLevel.HIGH, why), *(signs or ())]
    return RiskAssessment(_highest(everything, RiskLevel.HIGH), language, _shown(everything), refusal)


def _pattern_of(refusal: Refusal) -> str:
    return str(refusal).replace("_", " ")


# why a parser gave up is told in its words, which may quote the program
_REFUSALS = frozenset(map(_pattern_of, Refusal))


def _highest(signs: list[Sign], floor: RiskLevel) -> RiskLevel:
    return max((sign.level for sign in signs), default=floor)


def _shown(signs: list[Sign]) -> tuple[Sign, ...]:
    """Keep one sign per pattern, in the order of the program, and the gravest when there are too many."""
    first: dict[str, Sign] = {}
    for sign in sorted(signs, key=lambda sign: sign.line):
        kept = first.get(sign.pattern)
        if kept is None or kept.level < sign.level:
            first[sign.pattern] = sign
    gravest = sorted(first.values(), key=lambda sign: -sign.level.rank)[:MAX_SIGNS]
    return tuple(sorted(gravest, key=lambda sign: sign.line))
