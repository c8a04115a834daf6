"""Beginnings that are noted before they are filed: a small file beside the database, of the process that writes a log.

A run that nobody can see before it ends needs a beginning that outlives this process, and not yet one that everybody
finds. Noting it is one write, which the disk takes while the run goes on; it is filed together with its end, in one
transaction where two would cost more than the run. Whoever takes over the log of a dead process files what is noted.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ringfence.errors import Unavailable
from ringfence.evidence.sealing import canonical_record

if TYPE_CHECKING:
    from ringfence.evidence.records import Members
    from ringfence.journal.signer import Signer
    from ringfence.journal.store import LogState

_SLOTS: Final = 64
_SLOT_BYTES: Final = 8192


class Noted:
    """The slots of one log: each holds a beginning with a code made with the home's key, or what is left of one."""

    def __init__(self, database: Path) -> None:
        """Keep them beside the file `database`; nothing is opened yet."""
        self._database = database
        self._fd: int | None = None
        self._free: list[int] = []
        self._taken: dict[str, int] = {}
        self._number = 0
        self._term: tuple[str, int] = ("", 0)
        self._is_new = False
        self._begin_anew()
        _IN_THIS_PROCESS.add(self)

    def _begin_anew(self) -> None:
        # nobody may write or sync by the number of a descriptor that is another file's by then
        self._writing, self._syncing = threading.Lock(), threading.Lock()

    def begin_log(self, log: LogState) -> None:
        """Note what begins in `log` from now on; where no file can be made, everything is filed at once instead."""
        try:
            fd = os.open(self._path(log.number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        self._fd, self._number, self._term = fd, log.number, (log.log_id, log.term)
        try:
            # written once, so that a note changes no size and waits for no journal of the file system
            os.pwrite(fd, bytes(_SLOTS * _SLOT_BYTES), 0)
            os.fsync(fd)
        except OSError:
            self.close()
            return
        self._free = list(range(_SLOTS))

    def note(self, begin: Members, signer: Signer) -> bool:
        """Write a beginning into a free slot; False where there is none, or it is larger than one.

        Raises:
            InvalidRequest: It has no canonical form.
            Unavailable: It cannot be written.
        """
        with self._writing:
            if self._fd is None or not self._free:
                return False
            log_id, term = self._term
            text = canonical_record({"log_id": log_id, "term": term, "begin": begin})
            line = b"%s %s\n" % (signer.mac(sha256(text).digest()).hex().encode(), text)
            if len(line) > _SLOT_BYTES:
                return False
            try:
                os.pwrite(self._fd, line, self._free[-1] * _SLOT_BYTES)
            except OSError as error:
                raise Unavailable(f"a beginning cannot be noted, so nothing runs: {error.strerror}") from error
            self._taken[begin["exec_id"]] = self._free.pop()
            self._is_new = True
            return True

    def filed(self, exec_id: str) -> None:
        """Give the slot of a beginning that is in the database to the next one; what it says is known there."""
        with self._writing:
            slot = self._taken.pop(exec_id, None)
            if slot is not None:
                self._free.append(slot)

    def sync(self) -> None:
        """Have the disk take what is noted.

        Raises:
            Unavailable: It does not.
        """
        with self._syncing:
            if self._fd is None or not self._is_new:
                return
            self._is_new = False
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                raise Unavailable(f"the disk does not keep what begins, so nothing runs: {error.strerror}") from error

    def left_by(self, log: LogState, signer: Signer) -> Iterator[Members]:
        """Yield the beginnings that the last writer of `log` noted, filed or not; its term was the one before ours."""
        try:
            kept = self._path(log.number).read_bytes()
        except OSError:
            return
        for at in range(0, min(len(kept), _SLOTS * _SLOT_BYTES), _SLOT_BYTES):
            mac, _, text = kept[at : at + _SLOT_BYTES].partition(b"\n")[0].partition(b" ")
            begin = _begin_in(text, log) if _is_signed(mac, text, signer) else None
            if begin is not None:
                yield begin

    def end_log(self) -> None:
        """Remove the file, when all that was noted is filed and the log is still ours."""
        if self._fd is not None:
            self.close()
            with contextlib.suppress(OSError):  # what it says is known
                self._path(self._number).unlink()

    def close(self) -> None:
        """Let go of the file; what is noted stays for whoever takes over the log."""
        with self._writing, self._syncing:
            if self._fd is not None:
                os.close(self._fd)
            self._fd, self._free = None, []
            self._taken.clear()

    def _path(self, number: int) -> Path:
        return self._database.with_name(f"{self._database.name}.begun-{number}")


def _is_signed(mac: bytes, text: bytes, signer: Signer) -> bool:
    try:
        return signer.wrote(sha256(text).digest(), bytes.fromhex(mac.decode("ascii")))
    except ValueError:
        return False


def _begin_in(text: bytes, log: LogState) -> Members | None:
    """Return what our own code signed, if it was for the term that has just ended: an older one was settled then."""
    try:
        said: dict[str, Any] = json.loads(text)
    except ValueError:
        return None
    if (said.get("log_id"), said.get("term")) != (log.log_id, log.term - 1):
        return None
    begin: Members = said["begin"]
    return begin


_IN_THIS_PROCESS: weakref.WeakSet[Noted] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for noted in tuple(_IN_THIS_PROCESS):
        noted._begin_anew()
        noted.close()


os.register_at_fork(after_in_child=_leave_to_parent)
