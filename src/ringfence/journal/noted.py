"""What is noted before it is filed: a small file beside the database, of the process that writes a log.

A run that nobody can see before it ends needs a beginning that outlives this process, and not yet one that everybody
finds. Noting it is one write, which the disk takes while the run goes on, and so is noting how it ended; both are filed
in one transaction when the result has been told. Whoever takes over the log of a dead process files what is noted.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ringfence.errors import Unavailable
from ringfence.evidence.records import END
from ringfence.evidence.sealing import canonical_record
from ringfence.journal.forked import begin_anew_in_child

if TYPE_CHECKING:
    from ringfence.evidence.records import Members
    from ringfence.journal.signer import Signer
    from ringfence.journal.store import LogState

_LIVES_ON: Final = 4
_SLOTS: Final = 64
_LINE_BYTES: Final = 8192
_SLOT_BYTES: Final = 2 * _LINE_BYTES


class Left(NamedTuple):
    """What a process noted of one run before it died."""

    begin: Members
    end: Members | None


class Noted:
    """The slots of one log: each has a line for a beginning and one for its end, or for what is left of older ones.

    A line holds a code made with the home's key. A slot is free again when the disk has what was filed of it.
    """

    def __init__(self, database: Path, could_file: Callable[[], bool]) -> None:
        """Keep them beside the file `database`; `could_file` tells whether it can be written now. Nothing is opened."""
        self._database = database
        self.could_file = could_file
        self._fd: int | None = None
        self._free: list[int] = []
        self._taken: dict[str, int] = {}
        self._ended: set[str] = set()
        self._filed: list[int] = []
        self._term = b""
        self._at = database
        self._file: tuple[int, int] | None = None
        self._is_new = False
        self._filings = 0
        # nobody may write or sync by the number of a descriptor that is another file's by then
        self._writing, self._syncing = threading.Lock(), threading.Lock()
        begin_anew_in_child(self)

    def begin_anew(self) -> None:
        """Leave the notes to the parent of a forked child."""
        self._writing, self._syncing = threading.Lock(), threading.Lock()
        self.close()

    def committed(self, log: LogState, filed: Iterable[Members]) -> None:
        """Let the notes of what is in the database go; in a process that lives for long, begin to note."""
        self._filings += 1
        if self._filings == _LIVES_ON:
            self._begin_log(log)
        for record in filed:
            self._let_go(record)

    def _begin_log(self, log: LogState) -> None:
        """Note what begins in `log` from now on; where no file can be made, everything is filed at once instead."""
        path = self._path(log.number)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # what it said is filed, and whatever else lies there is not to be written into
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        self._fd, self._at, self._term = fd, path, _term(log.log_id, log.term)
        try:
            # written once, so that a note changes no size and waits for no journal of the file system
            os.pwrite(fd, bytes(_SLOTS * _SLOT_BYTES), 0)
            os.fsync(fd)
            _sync_directory(path.parent)  # or a loss of power takes the name, and all that is noted with it
            self._file = _identity(os.fstat(fd))
        except OSError:
            self.close()
            return
        self._free = list(range(_SLOTS))

    def note(self, begin: Members, signer: Signer) -> bool:
        """Write a beginning into a free slot; False where there is none, it does not fit or cannot be written.

        Raises:
            InvalidRequest: It has no canonical form.
        """
        with self._writing:
            if not self._free or not self._write(begin, self._free[-1] * _SLOT_BYTES, signer):
                return False
            self._taken[begin["exec_id"]] = self._free.pop()
            return True

    def is_there(self) -> bool:
        """Whether our file lies at its name: one that was taken away is written without complaint, and never found."""
        try:
            return _identity(self._at.lstat()) == self._file
        except OSError:
            return False

    def note_end(self, end: Members, signer: Signer) -> bool:
        """Write an end beside its beginning; False where that is not noted, it does not fit or cannot be written.

        Raises:
            InvalidRequest: It has no canonical form.
        """
        with self._writing:
            exec_id = end["exec_id"]
            slot = self._taken.get(exec_id)
            if slot is None or not self._write(end, slot * _SLOT_BYTES + _LINE_BYTES, signer):
                return False
            self._ended.add(exec_id)
            return True

    def _write(self, members: Members, at: int, signer: Signer) -> bool:
        if self._fd is None:
            return False
        text = self._term + canonical_record(members)
        line = b"%s %s\n" % (signer.mac(text).hex().encode(), text)
        if len(line) > _LINE_BYTES:
            return False
        try:
            if os.pwrite(self._fd, line, at) < len(line):
                return False
        except OSError:  # then it is filed, and whoever waits for that is told what is wrong
            return False
        self._is_new = True
        return True

    def _let_go(self, record: Members) -> None:
        """Let the slot of a run go of which all that was noted is in the database, as soon as the disk has it there."""
        with self._writing:
            exec_id = record.get("exec_id", "")
            if exec_id not in self._taken or (exec_id in self._ended and record["type"] != END):
                return
            self._ended.discard(exec_id)
            self._filed.append(self._taken.pop(exec_id))

    def sync(self, sync_database: Callable[[], None]) -> None:
        """Have the disk take what is noted, and what is filed; a slot is written again only when both are there.

        Raises:
            Unavailable: It does not.
        """
        with self._writing:
            filed, self._filed = self._filed, []
        with self._syncing:
            if self._fd is not None and self._is_new:
                self._is_new = False
                try:
                    os.fdatasync(self._fd)
                except OSError as error:
                    raise Unavailable(f"the disk does not keep what is noted: {error.strerror}") from error
        sync_database()
        with self._writing:
            if self._fd is not None:
                with contextlib.suppress(OSError):  # then they are not written again
                    for slot in filed:  # what is pruned one day must not be found here by whoever takes over the log
                        os.pwrite(self._fd, b"\0", slot * _SLOT_BYTES)
                    self._free.extend(filed)

    def is_kept_of(self, number: int) -> bool:
        """Whether a process noted something in that log, and has not closed it."""
        return self._path(number).exists()

    def left_by(self, log: LogState, signer: Signer) -> Iterator[Left]:
        """Yield what the last writer of `log` noted, filed or not; its term was the one before ours."""
        kept = _read(self._path(log.number))
        for at in range(0, len(kept), _SLOT_BYTES):
            begin = _noted_at(kept, at, log, signer)
            end = _noted_at(kept, at + _LINE_BYTES, log, signer)
            if begin is not None:  # beside a new beginning stands the end of an older run
                is_its_own = end is not None and end["exec_id"] == begin["exec_id"]
                yield Left(begin, end if is_its_own else None)

    def forget(self, number: int) -> None:
        """Remove what was noted in a log that nobody has, and of which everything is filed."""
        self._path(number).unlink(missing_ok=True)

    def end_log(self) -> None:
        """Remove the file, when all that was noted is filed and the log is still ours."""
        if self._fd is not None:
            self.close()
            with contextlib.suppress(OSError):  # what it says is known
                self._at.unlink()

    def close(self) -> None:
        """Let go of the file; what is noted stays for whoever takes over the log."""
        with self._writing, self._syncing:
            if self._fd is not None:
                os.close(self._fd)
            self._fd, self._free, self._filed, self._filings = None, [], [], 0
            self._taken.clear()
            self._ended.clear()

    def _path(self, number: int) -> Path:
        return self._database.with_name(f"{self._database.name}.begun-{number}")


def _read(path: Path) -> bytes:
    """Return what lies where the notes of a log would; of what is no file, or has no end, as much as they could be."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        return os.pread(fd, _SLOTS * _SLOT_BYTES, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(fd)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _noted_at(kept: bytes, at: int, log: LogState, signer: Signer) -> Members | None:
    mac, _, text = kept[at : at + _LINE_BYTES].partition(b"\n")[0].partition(b" ")
    # of the term that has just ended: an older one was settled then
    its_term = _term(log.log_id, log.term - 1)
    if not text.startswith(its_term) or not _is_signed(mac, text, signer):
        return None
    record: Members = json.loads(text.removeprefix(its_term))
    return record


def _term(log_id: str, term: int) -> bytes:
    return f"{log_id} {term} ".encode()


def _is_signed(mac: bytes, text: bytes, signer: Signer) -> bool:
    try:
        return signer.wrote(text, bytes.fromhex(mac.decode("ascii")))
    except ValueError:
        return False
