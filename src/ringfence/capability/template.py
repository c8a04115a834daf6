"""Argument templates: which arguments a program may be given, position by position; what is not listed is refused."""

from __future__ import annotations

import re
from typing import Any

from ringfence.capability.kind import invalid
from ringfence.dataclass import dataclass

_TAG = "ProcExec"
MAX_REPEATS = 3
MAX_OPTIONALS = 8
MAX_MATCHED = 256

# A backtracking matcher is exponential in repeats of repeats and in back-references, and a template may come from a
# manifest: a group is never repeated, nothing refers back or looks around.
_FORBIDDEN = re.compile(r"\)[*+?{]|\(\?")
_REPEAT = re.compile(r"[*+{]")
_OPTIONAL = re.compile(r"(?<![*+?}])\?")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these arguments."""

    values: frozenset[str]

    def matches(self, argument: str) -> bool:
        """Whether it is one of them."""
        return argument in self.values

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"enum": sorted(self.values)}


@dataclass(frozen=True, slots=True)
class Pattern:
    """An argument that a regular expression matches from its first character to its last."""

    regex: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.regex)
        except (re.error, TypeError, RecursionError) as error:
            raise invalid(_TAG, f"{self.regex!r} is not a regular expression: {error}") from None
        refers_back = any(letter.isdigit() or letter in "gk" for letter in _ESCAPED.findall(self.regex))
        # Escapes first: in `\\[(a+)+]` the bracket opens no class, and what follows is no list of characters.
        bare = _CLASS.sub("x", _ESCAPED.sub("x", self.regex))
        if (
            refers_back
            or _FORBIDDEN.search(bare)
            or len(_REPEAT.findall(bare)) > MAX_REPEATS
            or len(_OPTIONAL.findall(bare)) > MAX_OPTIONALS
        ):
            raise invalid(
                _TAG,
                f"{self.regex!r} could take too long to match",
                fix=f"repeat no group, refer back to none, and repeat at most {MAX_REPEATS} times",
            )

    def matches(self, argument: str) -> bool:
        """Whether all of it matches; an argument of more than 256 characters never does."""
        return len(argument) <= MAX_MATCHED and re.fullmatch(self.regex, argument) is not None

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
