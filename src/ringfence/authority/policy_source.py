"""Where calls get their policy: each one sees the newest that is good, and keeps it until it ends."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Protocol

from ringfence.authority.policy import PolicySnapshot
from ringfence.authority.policy_reader import load_policy
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RingfenceError

_TRIES = 3


class PolicyText(Protocol):
    """A text that may change under our eyes."""

    name: str

    @property
    def alone(self) -> AbstractContextManager[object]:
        """Held by whoever takes a change over, one at a time; entered again and again."""
        ...

    def stamp(self) -> Hashable:
        """Return something else whenever the text is another; cheap, because every call asks.

        Raises:
            OSError: It cannot be seen.
        """
        ...

    def read(self) -> bytes:
        """Return the text.

        Raises:
            OSError: It cannot be read.
        """
        ...

    def is_being_written(self) -> bool:
        """Whether there may be more to come, as far as anybody can tell."""
        ...


@dataclass(frozen=True, slots=True)
class _State:
    stamp: Hashable
    snapshot: PolicySnapshot
    problem: RingfenceError | None


class PolicySource:
    """Serves the newest good snapshot; a text that is broken changes nothing and says so in `problem`."""

    def __init__(self, text: PolicyText, *, on_problem: Callable[[RingfenceError], None] | None = None) -> None:
        """Read the text for the first time; whoever names it now says that it is whole.

        Raises:
            InvalidRequest: It is broken, and there is nothing older to go on with.
        """
        self._text = text
        self._on_problem = on_problem
        try:
            stamp, content = self._read()
        except OSError as error:
            raise _unreadable(text.name, error) from error
        # replaced as a whole: whoever reads it meanwhile sees the old state or the new one
        self._state = _State(stamp, load_policy(content, text.name), None)

    def current(self) -> PolicySnapshot:
        """Return the policy for a call that begins now."""
        state = self._state
        with contextlib.suppress(OSError):  # then it is looked at again, and said why it cannot be seen
            if self._text.stamp() == state.stamp:
                return state.snapshot
        with self._text.alone:  # of two who look at once, the slower must not put an older policy back
            known, self._state = self._state, (newest := self._newest(self._state))
        problem = newest.problem
        # once per change: a broken file that nobody mends must not fill the log
        if problem is not None and self._on_problem is not None and str(problem) != str(known.problem):
            self._on_problem(problem)
        return newest.snapshot

    @property
    def problem(self) -> RingfenceError | None:
        """Why the newest text is not in use, or nothing when it is."""
        return self._state.problem

    def _newest(self, known: _State) -> _State:
        stamp: Hashable = None
        try:
            stamp, content = self._read()
            snapshot = known.snapshot
            if content != snapshot.text:  # not only touched
                stamp, content = self._read_closed()
                snapshot = load_policy(content, self._text.name)
        except RingfenceError as error:
            return _State(stamp, known.snapshot, error)
        except OSError as error:
            return _State(None, known.snapshot, _unreadable(self._text.name, error))
        return _State(stamp, snapshot, None)

    def _read_closed(self) -> tuple[Hashable, bytes]:
        """Read a text that nobody was writing meanwhile."""
        for _ in range(_TRIES):
            stamp, content = self._read()
            if self._text.is_being_written():
                raise OSError(errno.EBUSY, "it is open for writing, so there may be more to come")
            if self._text.stamp() == stamp:  # or whoever had it open while it was read is done by now
                return stamp, content
        raise self._restless()

    def _read(self) -> tuple[Hashable, bytes]:
        """Read a text that did not change while it was read."""
        for _ in range(_TRIES):
            before = self._text.stamp()
            content = self._text.read()
            if self._text.stamp() == before:
                return before, content
        raise self._restless()

    def _restless(self) -> InvalidRequest:
        return InvalidRequest(f"{self._text.name} changes faster than it can be read", reason="policy_unreadable")


def _unreadable(name: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"{name} cannot be read: {error.strerror or error}",
        reason="policy_unreadable",
        fix="put a whole file there, best by renaming one; a policy that is in use stays in use until then",
    )
