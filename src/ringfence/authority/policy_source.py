"""Where calls get their policy: each one sees the newest that is good, and keeps it until it ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

from ringfence.authority.policy import PolicySnapshot
from ringfence.authority.policy_reader import load_policy
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, RingfenceError

_TRIES = 3


class PolicyText(Protocol):
    """A text that may change under our eyes."""

    name: str

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


@dataclass(frozen=True, slots=True)
class _State:
    stamp: Hashable
    snapshot: PolicySnapshot
    problem: RingfenceError | None


class PolicySource:
    """Serves the newest good snapshot; a text that is broken changes nothing and says so in `problem`."""

    def __init__(self, text: PolicyText, *, on_problem: Callable[[RingfenceError], None] | None = None) -> None:
        """Read the text for the first time.

        Raises:
            InvalidRequest: It is broken, and there is nothing older to go on with.
        """
        self._text = text
        self._on_problem = on_problem
        try:
            stamp, content = self._read()
        except OSError as error:
            raise _unreadable(text.name, error) from error
        # Replaced as a whole: whoever reads it meanwhile sees the old state or the new one. Two callers may load one
        # change at once, and the slower one may put an older state back; its stamp makes the next caller look again.
        self._state = _State(stamp, load_policy(content, text.name), None)

    def current(self) -> PolicySnapshot:
        """Return the policy for a call that begins now."""
        state = self._state
        try:
            stamp = self._text.stamp()
            if stamp == state.stamp:
                return state.snapshot
            stamp, content = self._read()
            # touched but not changed: keep what is already worked out
            same = content == state.snapshot.text
            snapshot = state.snapshot if same else load_policy(content, self._text.name)
            self._state = state = _State(stamp, snapshot, None)
        except RingfenceError as error:
            state = self._keep(state, stamp, error)
        except OSError as error:
            state = self._keep(state, None, _unreadable(self._text.name, error))
        return state.snapshot

    @property
    def problem(self) -> RingfenceError | None:
        """Why the newest text is not in use, or nothing when it is."""
        return self._state.problem

    def _keep(self, state: _State, stamp: Hashable, error: RingfenceError) -> _State:
        known = state.problem
        self._state = kept = _State(stamp, state.snapshot, error)
        # once per change: a broken file that nobody mends must not fill the log
        if self._on_problem is not None and (known is None or str(known) != str(error)):
            self._on_problem(error)
        return kept

    def _read(self) -> tuple[Hashable, bytes]:
        """Read a text that did not change while it was read."""
        for _ in range(_TRIES):
            before = self._text.stamp()
            content = self._text.read()
            if self._text.stamp() == before:
                return before, content
        raise InvalidRequest(f"{self._text.name} changes faster than it can be read", reason="policy_unreadable")


def _unreadable(name: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"{name} cannot be read: {error.strerror or error}",
        reason="policy_unreadable",
        fix="put the file back; the last good policy stays in use",
    )
