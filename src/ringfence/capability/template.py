"""Argument templates: which arguments a program may be given, position by position; what is not listed is refused."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ringfence import stepwise
from ringfence.capability.kind import invalid
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

_TAG = "ProcExec"
MAX_STATES = 128
MAX_MATCHED = 256


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these arguments."""

    values: frozenset[str]

    def matches(self, argument: str) -> bool:
        """Whether it is one of them."""
        return argument in self.values

    @property
    def states(self) -> int:
        """How much each character of an argument costs at most."""
        return 1

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"enum": sorted(self.values)}


@dataclass(frozen=True, slots=True)
class Pattern:
    """An argument that a regular expression matches from its first character to its last."""

    regex: str

    def __post_init__(self) -> None:
        # a template may come from a manifest, or from whoever narrows a grant: no matcher of ours may backtrack
        try:
            states = _machine(self.regex).states
        except InvalidRequest as error:
            raise invalid(_TAG, str(error), fix="refer back to nothing, and look around nowhere") from None
        if states > MAX_STATES:
            raise invalid(_TAG, f"{self.regex[:100]!r} takes more than {MAX_STATES} states", fix="repeat less in it")

    def matches(self, argument: str) -> bool:
        """Whether all of it matches; an argument of more than 256 characters never does."""
        return len(argument) <= MAX_MATCHED and _matches(self.regex, argument)

    @property
    def states(self) -> int:
        """How much each character of an argument costs at most."""
        return _machine(self.regex).states

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"regex": self.regex}


Matcher = OneOf | Pattern


@dataclass(frozen=True, slots=True)
class Template:
    """Exactly these arguments, and as many as `rest` matches after them."""

    args: tuple[Matcher, ...] = ()
    rest: Matcher | None = None

    def matches(self, args: tuple[str, ...]) -> bool:
        """Whether every argument is one the template has a place for."""
        fixed, further = args[: len(self.args)], args[len(self.args) :]
        if len(fixed) != len(self.args) or (further and self.rest is None):
            return False
        return all(matcher.matches(argument) for matcher, argument in zip(self.args, fixed, strict=True)) and all(
            self.rest is not None and self.rest.matches(argument) for argument in further
        )

    def work(self, args: tuple[str, ...]) -> int:
        """Return how many steps it takes at most to match them."""
        matchers = (*self.args, *(self.rest,) * max(0, len(args) - len(self.args)))
        return sum(len(argument) * matcher.states for matcher, argument in zip(matchers, args, strict=False) if matcher)

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        form: dict[str, Any] = {"args": [matcher.fields() for matcher in self.args]}
        if self.rest is not None:
            form["rest"] = self.rest.fields()
        return form


def read_template(form: object) -> Template:
    """Read `{"args": [matcher, …], "rest": matcher}`.

    Raises:
        InvalidRequest: It is anything else.
    """
    if not isinstance(form, dict) or not form.keys() <= {"args", "rest"} or not isinstance(form.get("args"), list):
        raise invalid(_TAG, "a template is an object with a list 'args' and perhaps 'rest'")
    rest = _read_matcher(form["rest"]) if "rest" in form else None
    return Template(tuple(map(_read_matcher, form["args"])), rest)


def _read_matcher(form: object) -> Matcher:
    match form:
        case {"enum": [*values], **others} if not others and all(isinstance(value, str) for value in values):
            return OneOf(frozenset(map(str, values)))
        case {"regex": str(regex), **others} if not others:
            return Pattern(regex)
    raise invalid(_TAG, 'an argument is {"enum": [texts]} or {"regex": text}')


@lru_cache(maxsize=256)
def _machine(regex: str) -> stepwise.Pattern:
    return stepwise.Pattern(regex)


@lru_cache(maxsize=4096)
def _matches(regex: str, argument: str) -> bool:
    """Remembered, because capabilities that met share their templates, and each of them is asked."""
    return _machine(regex).spans(argument)
