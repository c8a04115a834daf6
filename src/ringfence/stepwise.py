"""Regular expressions of strangers, matched in time that grows with the text and never faster.

A manifest's author or the holder of a grant writes the pattern, and an agent the text: with a matcher that backtracks,
`^(a+)+$` and forty letters would stop the whole service. Here a pattern is a set of states that all advance together,
one character at a time; what such a machine cannot do (looking around, referring back) is refused when it is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ringfence.errors import InvalidRequest

_parser: Any = re._parser  # type: ignore[attr-defined]  # the only reader of this syntax that there is
MAX_CHARACTERS: Final = 512
MAX_STATES: Final = 1024
MAX_STEPS: Final = 1_000_000
_PLAIN_FLAGS = re.UNICODE.value
_MOST_KNOWN = 65_536
_END = -1

_Accepts = Callable[[str], bool]
_LINE_ENDS = "\n\r\u2028\u2029"
# As ECMA-262 has them, which JSON Schema asks for: digits and letters are those of ASCII.
_CATEGORIES: dict[str, _Accepts] = {
    "DIGIT": lambda char: "0" <= char <= "9",
    "WORD": lambda char: char == "_" or (char.isascii() and char.isalnum()),
    "SPACE": lambda char: char.isspace() or char == "\ufeff",
}


class Pattern:
    """One expression, ready to be looked for in texts."""

    def __init__(self, expression: str) -> None:
        """Read it.

        Raises:
            InvalidRequest: It is no regular expression, or one that cannot be matched step by step.
        """
        if len(expression) > MAX_CHARACTERS:
            raise _refused(f"a pattern has at most {MAX_CHARACTERS} characters")
        try:
            tree = _parser.parse(expression)
        except (re.error, RecursionError, OverflowError, FutureWarning) as error:
            raise _refused(f"{expression[:100]!r} is not a regular expression: {error}") from None
        if tree.state.flags != _PLAIN_FLAGS:
            raise _refused("a pattern sets no flags")
        self._work = 0
        # state → what it accepts and the state after it, or the states it stands for without a character
        self._steps: list[tuple[_Accepts, int] | tuple[str, tuple[int, ...]]] = []
        self._first = self._sequence(tree, _END)
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    @property
    def states(self) -> int:
        """How many states advance together at most."""
        return len(self._steps)

    def found_in(self, text: str) -> bool:
        """Whether some part of `text` matches.

        Raises:
            InvalidRequest: The text is too long for so large a pattern.
        """
        self._require_short(text)
        last = len(text)
        active, entering = (self._reached([self._first], at, last) for at in (0, -1))
        for at, char in enumerate(text, 1):
            if _END in active:
                return True
            if at == last:  # an end may begin and end here that does so nowhere else
                entering = self._reached([self._first], at, last)
            active = self._after(active, char, at, last) | entering
        return _END in active

    def spans(self, text: str) -> bool:
        """Whether all of `text` matches, from its first character to its last.

        Raises:
            InvalidRequest: The text is too long for so large a pattern.
        """
        self._require_short(text)
        last = len(text)
        active = self._reached([self._first], 0, last)
        for at, char in enumerate(text, 1):
            if not active:
                return False
            active = self._after(active, char, at, last)
        return _END in active

    def _require_short(self, text: str) -> None:
        if len(text) * max(self.states, 1) > MAX_STEPS:
            raise _refused(f"a text of {len(text)} characters is too long for a pattern of {self.states} states")

    def _after(self, active: frozenset[int], char: str, at: int, last: int) -> frozenset[int]:
        # at the last character an end may be reached that is none before it
        if at == last:
            return self._reached(self._accepted(active, char), at, last)
        known = self._known.get((active, char))
        if known is None:
            if len(self._known) * len(self._steps) >= _MOST_KNOWN:  # each may hold every state
                self._known.clear()
            known = self._known[active, char] = self._reached(self._accepted(active, char), at, last)
        return known

    def _accepted(self, active: Iterable[int], char: str) -> list[int]:
        reached = []
        for state in active:
            accepts, after = self._steps[state] if state != _END else ("", ())
            if callable(accepts) and accepts(char):
                reached.append(after)
        return reached  # type: ignore[return-value]  # what accepts a character has one state after it

    def _reached(self, states: Iterable[int], at: int, last: int) -> frozenset[int]:
        """Return the states that wait for a character, or the end, without having taken another."""
        waiting, seen = list(states), set[int]()
        found = set()
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            if state == _END:
                found.add(state)
                continue
            what, after = self._steps[state]
            if callable(what):
                found.add(state)
            elif what == "or" or (what == "begin" and at == 0) or (what == "end" and at == last):
                waiting.extend(after)  # type: ignore[arg-type]  # no character, so several states
        return frozenset(found)

    # --- from the tree of the expression to states, back to front ---

    def _add(self, step: Any) -> int:
        if len(self._steps) >= MAX_STATES:
            raise _refused(f"a pattern may have {MAX_STATES} states; repeat less in it")
        self._steps.append(step)
        return len(self._steps) - 1

    def _sequence(self, items: Iterable[Any], after: int) -> int:
        self._work += 1
        if self._work > MAX_STATES:  # `(){9999}` makes no states, and must not make us count to them either
            raise _refused("a pattern repeats less than this one")
        for kind, argument in reversed(list(items)):
            after = self._item(str(kind), argument, after)
        return after

    def _item(self, kind: str, argument: Any, after: int) -> int:
        match kind:
            case "LITERAL":
                return self._add((chr(argument).__eq__, after))
            case "NOT_LITERAL":
                return self._add((chr(argument).__ne__, after))
            case "ANY":
                return self._add((lambda char: char not in _LINE_ENDS, after))
            case "IN":
                return self._add((_one_of(argument), after))
            case "BRANCH":
                return self._add(("or", tuple(self._sequence(branch, after) for branch in argument[1])))
            case "SUBPATTERN":
                _, on, off, inner = argument
                if on or off:
                    raise _refused("a pattern sets no flags")
                return self._sequence(inner, after)
            case "MAX_REPEAT" | "MIN_REPEAT":  # how greedy makes no difference to whether it matches
                least, most, inner = argument
                return self._repeat(least, most, inner, after)
            case "AT" if str(argument) in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
                return self._add(("begin", (after,)))
            case "AT" if str(argument) in ("AT_END", "AT_END_STRING"):
                return self._add(("end", (after,)))
        raise _refused(f"a pattern has no {kind.lower()} here: it neither looks around nor refers back")

    def _repeat(self, least: int, most: int, inner: Any, after: int) -> int:
        if most is _parser.MAXREPEAT:
            again = self._add(("or", ()))
            self._steps[again] = ("or", (self._sequence(inner, again), after))
            end = again
        else:
            end = after
            for _ in range(most - least):
                end = self._add(("or", (self._sequence(inner, end), after)))
        for _ in range(least):
            end = self._sequence(inner, end)
        return end


def _one_of(items: Iterable[Any]) -> _Accepts:
    """Return what tells whether a character is in a class such as `[a-z0-9_]`."""
    accepting: list[_Accepts] = []
    negated = False
    for kind, argument in items:
        match str(kind):
            case "NEGATE":
                negated = True
            case "LITERAL":
                accepting.append(chr(argument).__eq__)
            case "RANGE":
                accepting.append(lambda char, low=argument[0], high=argument[1]: low <= ord(char) <= high)  # type: ignore[misc]
            case _:
                accepting.append(_category(str(argument).removeprefix("CATEGORY_")))
    return lambda char: any(accepts(char) for accepts in accepting) is not negated


def _category(name: str) -> _Accepts:
    positive = _CATEGORIES[name.removeprefix("NOT_")]
    return (lambda char: not positive(char)) if name.startswith("NOT_") else positive


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(problem, reason="invalid_schema")
