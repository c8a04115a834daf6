"""The sessions that AIO clients name: each of one project, bounded in number, forgotten when nobody comes back.

A session costs no box. It is a name, a directory and the commands that were given to it, each of which is a process of
its own; a session of Python is the one process that takes its cells.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest, QuotaExceeded
from ringfence.service.aio.carried import Carried

IDLE_SECONDS: Final = 900.0
"""How long a session that nothing runs in, and nobody asks for, is remembered."""
MOST_OF_A_TENANT: Final = 256
MOST_COMMANDS: Final = 32
"""How many commands of a session can still be asked about."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@-]{0,127}\Z")


class Kind(StrEnum):
    """What a session is of; the names of one kind are not those of another."""

    BASH = "bash"
    SHELL = "shell"
    PYTHON = "python"


class Place(NamedTuple):
    """Whose sessions they are: nobody finds one of another place, whatever it is called."""

    tenant: str
    project: str


@dataclass(slots=True)
class Command:
    """One command of a session, and how it ended once it has."""

    command_id: str
    text: str
    """How it begins: what is remembered of a session must not grow with what it was given."""
    process_id: str
    status: str | None = None
    """How it ended, in the words of `ringfence.outcome.Status`; None while it runs."""
    exit_code: int | None = None
    killed_by: str | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has ended, and the session has taken over what it left."""


@dataclass(slots=True)
class Session:
    """One session; `carried` is what its next command starts with."""

    session_id: str
    kind: Kind
    is_named: bool
    """Whether a caller chose its name, and so may count on finding it again."""
    carried: Carried
    created: float
    used: float
    commands: dict[str, Command] = field(default_factory=dict)
    count: int = 0
    no_change_seconds: float | None = None
    process_id: str | None = None
    """The interpreter, of a session of Python."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while something begins in it."""

    @property
    def last(self) -> Command | None:
        """The command that was given to it last."""
        return next(reversed(self.commands.values()), None)

    @property
    def running(self) -> list[Command]:
        """The commands that have not ended."""
        return [command for command in self.commands.values() if command.status is None]

    @property
    def is_busy(self) -> bool:
        """Whether something would be lost with it."""
        return bool(self.running) or self.turn.locked()

    def add(self, command: Command) -> None:
        """Remember a command, and forget the oldest that has ended."""
        self.commands[command.command_id] = command
        self.count += 1
        ended = [known.command_id for known in self.commands.values() if known.status is not None]
        for command_id in ended[: max(0, len(self.commands) - MOST_COMMANDS)]:
            del self.commands[command_id]

    def command(self, command_id: str | None) -> Command:
        """Return a command of it, or the last.

        Raises:
            InvalidRequest: There is none.
        """
        found = self.last if command_id is None else self.commands.get(command_id)
        if found is None:
            raise InvalidRequest("there is no such command in the session", reason="not_found")
        return found


class Desk:
    """All sessions of a service; of one event loop."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """There are none yet."""
        self._now = now
        self._sessions: dict[tuple[Place, Kind, str], Session] = {}
        # each is there as long as somebody holds it or waits for it; between two of them it is not locked
        self._edits: WeakValueDictionary[Place, asyncio.Lock] = WeakValueDictionary()
        self._watching: set[asyncio.Task[None]] = set()

    def opened(self, place: Place, kind: Kind, session_id: str | None, cwd: str | None = None) -> Session:
        """Return the session of this name, made where there is none; without a name a new one.

        Raises:
            InvalidRequest: It cannot be the name of one.
            QuotaExceeded: The tenant has as many as it may, and something runs in each.
        """
        self._forget_idle()
        if session_id is not None and _ID.match(session_id) is None:
            raise InvalidRequest(
                "a session's id is 1 to 128 letters, digits, '_', '-', '.', ':' or '@'", reason="invalid_name"
            )
        found = None if session_id is None else self._sessions.get((place, kind, session_id))
        if found is None:
            self._make_room(place.tenant)
            carried = Carried() if cwd is None else Carried(cwd)
            name = session_id or secrets.token_hex(16)
            found = Session(name, kind, session_id is not None, carried, self._now(), self._now())
            self._sessions[place, kind, name] = found
        elif cwd is not None:
            found.carried = Carried(cwd, found.carried.variables)
        found.used = self._now()
        return found

    def find(self, place: Place, kind: Kind, session_id: str) -> Session:
        """Return a session of the place.

        Raises:
            InvalidRequest: There is none of this name there; whether there is one elsewhere nobody can tell.
        """
        self._forget_idle()
        found = self._sessions.get((place, kind, session_id))
        if found is None:
            raise InvalidRequest("there is no such session", reason="not_found")
        found.used = self._now()
        return found

    def listed(self, place: Place, kind: Kind) -> list[Session]:
        """Return the sessions of a place, the oldest first."""
        self._forget_idle()
        return [session for key, session in self._sessions.items() if key[:2] == (place, kind)]

    def forget(self, place: Place, session: Session) -> None:
        """Let its name be another's."""
        key = place, session.kind, session.session_id
        if self._sessions.get(key) is session:
            del self._sessions[key]

    def age(self, session: Session) -> tuple[float, float]:
        """Return how many seconds ago it was made, and last used."""
        now = self._now()
        return now - session.created, now - session.used

    def edits(self, place: Place) -> asyncio.Lock:
        """Return what is held while a file of the place is read, changed and written again."""
        return self._edits.setdefault(place, asyncio.Lock())

    def watch(self, task: asyncio.Task[None]) -> None:
        """Keep a task that sees a command to its end."""
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    def _forget_idle(self) -> None:
        latest = self._now() - IDLE_SECONDS
        for key in [key for key, one in self._sessions.items() if one.used < latest and not one.is_busy]:
            del self._sessions[key]

    def _make_room(self, tenant: str) -> None:
        """Forget the tenant's oldest session without a name, where it has too many."""
        mine = {key: one for key, one in self._sessions.items() if key[0].tenant == tenant}
        if len(mine) < MOST_OF_A_TENANT:
            return
        idle = [key for key, one in mine.items() if not one.is_busy and not one.is_named and one.process_id is None]
        if not idle:
            raise QuotaExceeded(
                f"a tenant has {MOST_OF_A_TENANT} sessions", reason="concurrency", fix="close one, or wait"
            )
        del self._sessions[min(idle, key=lambda key: mine[key].used)]
