"""The parts that `ringfence evidence` works with, opened over one home, and how a record of it is read and shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.clock import SystemClock
from ringfence.database.sqlite import DATABASE_NAME, SqliteDatabase
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence.sealing import read_record, record_hash
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.render import one_line
from ringfence.journal.reader import Place, Reader, reading
from ringfence.workspaces.home import default_home

if TYPE_CHECKING:
    from ringfence.content.store import ContentStore
    from ringfence.database.port import Database
    from ringfence.evidence.note import VerifierKey
    from ringfence.journal.store import Log

INTACT, ALTERED, PRUNED, MISSING = "intact", "altered", "pruned", "missing"


class Desk:
    """The evidence of one home."""

    def __init__(self, home: Path) -> None:
        """Nothing is opened yet."""
        self.home = home
        self.now_ms = SystemClock().now_ms()
        self._is_settled = False

    @cached_property
    def database(self) -> Database:
        """Where the journal of this home is.

        Raises:
            InvalidRequest: There is none; looking for evidence makes no home.
        """
        from ringfence.database.address import default_database, open_database

        url = default_database()
        if url is None and not (self.home / DATABASE_NAME).exists():
            raise InvalidRequest(
                f"there is no evidence in {self.home}",
                reason="not_found",
                fix="run something first, or name the home with --home DIR or $RINGFENCE_HOME",
            )
        return open_database(self.home, url)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open the journal as it is now; what killed processes left is set right first, as the next run would."""
        if not self._is_settled:
            self._is_settled = True
            self._settle_the_dead()
        with reading(self.database) as reader:
            yield reader

    def _settle_the_dead(self) -> None:
        if not isinstance(self.database, SqliteDatabase):
            return  # there everything is filed before it is told
        from ringfence.journal.noted import Noted

        noted = Noted(self.home / DATABASE_NAME, self.database.could_write)
        with self.reading() as reader:
            have_noted = [log for log in reader.logs() if log.held and noted.is_kept_of(log.number)]
        if not have_noted or self.key is None or not self.dead_logs(have_noted):
            return  # a copy without the key can be read, and is not to be given another one
        from ringfence.journal import recovery
        from ringfence.journal.signer import Signer

        with suppress(Unavailable), self.database.transaction() as cursor:  # a copy may be damaged, or not writable
            recovery.settle_the_dead(cursor, self.now_ms, Signer.in_home(self.home), noted)

    def forget_notes(self) -> None:
        """Remove what killed processes noted beside the database and what is filed by now: it may have been pruned."""
        if not isinstance(self.database, SqliteDatabase):
            return
        from ringfence.journal import store
        from ringfence.journal.noted import Noted

        noted = Noted(self.home / DATABASE_NAME, self.database.could_write)
        with self.database.transaction() as cursor:  # nobody takes over a log meanwhile, and notes in it
            for log in store.logs(cursor):
                if not log.held and noted.is_kept_of(log.number) and cursor.lease(log.number):
                    noted.forget(log.number)
                    cursor.end_lease(log.number)

    def dead_logs(self, logs: Iterable[Log]) -> set[int]:
        """Return the numbers of those logs that nobody writes any more: what is open in them will not end by itself."""
        found: set[int] = set()
        with self.database.reading() as cursor:
            for log in logs:
                # a process may be in any container or on any host: its lease is what tells, and is given back at once
                if cursor.lease(log.number):
                    cursor.end_lease(log.number)
                    found.add(log.number)
        return found

    @property
    def key(self) -> VerifierKey | None:
        """The public half of the key that signs here, if anything was signed."""
        from ringfence.journal.signer import key_in_home

        return key_in_home(self.home)

    @property
    def contents(self) -> ContentStore:
        """Where contents are, if somebody switched that on."""
        from ringfence.content.store import ContentStore

        return ContentStore(self.home)


@dataclass(frozen=True, slots=True)
class Read:
    """A record as it was found: what it says, and whether that is what its hash is of."""

    place: Place
    members: dict[str, Any]
    state: str
    """`intact`, `altered`, `pruned` (its hash alone is left) or `missing`."""


def read_place(place: Place) -> Read:
    """Read a record and hold it against its hash; one that was tampered with is shown as far as it can be read."""
    if place.text is None:
        return Read(place, {}, PRUNED if place.hash else MISSING)
    try:
        members = read_record(place.text)
        state = INTACT if record_hash(place.text) == place.hash else ALTERED
    except InvalidRequest:
        members, state = _salvaged(place.text), ALTERED
    if state == INTACT and (members.get("log_id"), members.get("seq")) != (place.log_id, place.seq):
        state = ALTERED  # a record of another place was put here, with its hash
    return Read(place, members, state)


def _salvaged(text: str) -> dict[str, Any]:
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def parser(action: str) -> StrictParser:
    """Return a parser with what every action takes."""
    made = StrictParser(prog=f"ringfence evidence {action}")
    made.add_argument("--home", type=Path)
    made.add_argument("--json", action="store_true")
    return made


def open_desk(home: Path | None) -> Desk:
    """Return the desk of a home, or of `$RINGFENCE_HOME`."""
    return Desk(home or default_home())


def say(line: str = "") -> None:
    """Print one line; names in it come from callers and must not drive the reader's terminal."""
    sys.stdout.write(one_line(line))


def shown_time(ms: object) -> str:
    """Return a moment as people read it; what no calendar has, and what somebody forged, as it is."""
    from ringfence.evidence.projections.run import rfc3339

    try:
        return rfc3339(ms) if isinstance(ms, int) else f"{ms!r} ms"
    except InvalidRequest:
        return f"{ms} ms"


def no_such(name: str) -> InvalidRequest:
    """Return the refusal for an execution that is not there."""
    return InvalidRequest(
        f"there is no execution {name!r} in this home",
        reason="not_found",
        fix="give an exec_id or evidence_id that 'ringfence evidence list' shows",
    )
