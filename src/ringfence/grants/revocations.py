"""The list of what was revoked: one file per home that only grows, and a single `stat` tells whether it did."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any, Final, Literal

from ringfence.authority.credential import Credential
from ringfence.authority.grant import Grant
from ringfence.authority.issuer_key import CLOCK_TOLERANCE_MS
from ringfence.capability.canonical import canonical
from ringfence.errors import Denied, ExecutionFailed, InvalidRequest, Unavailable
from ringfence.ports import Clock
from ringfence.private_files import create_file, open_file, private_directory, read_some, write_all

Kind = Literal["grant", "block", "subject", "key"]
KINDS: Final = ("grant", "block", "subject", "key")
_HEADER = b"ringfence revocations 1\n"
_NAME = "list"
_MOST_BYTES = 1 << 28
_MOST_ID = 1024

_Stamp = tuple[int, int, int, int, int]


class RevocationFile:
    """Implements `ports.RevocationWatcher` for every process that shares a home."""

    def __init__(self, home: Path, clock: Clock) -> None:
        """Nothing is read or made yet."""
        self._directory = home / "revocations"
        self._keys = home / "keys"
        self._clock = clock
        self._lock = threading.Lock()
        self._stamp: _Stamp | None = None
        self._revoked: dict[tuple[str, ...], int] = {}

    def is_revoked(self, grant: Grant | Credential) -> bool:
        """Whether the grant, a block of it, its subject or its key was revoked.

        Raises:
            Denied: The list cannot be read, so that everything counts as revoked.
        """
        revoked = self._current()
        if not revoked:
            return False
        if isinstance(grant, Credential):
            if any(("block", block) in revoked for block in grant.revocation_ids):
                return True
            if grant.key is not None and ("key", grant.key.key_id) in revoked:
                return True
            grant = grant.grant
        if ("grant", grant.tenant, grant.nonce) in revoked:
            return True
        # what the subject is granted afterwards is good again; banning somebody is the policy's work
        until = revoked.get(("subject", grant.tenant, grant.subject_id))
        return until is not None and grant.not_before <= until + CLOCK_TOLERANCE_MS

    def is_key_revoked(self, key_id: str) -> bool:
        """Whether the issuer key was revoked; raises what `is_revoked` raises."""
        return ("key", key_id) in self._current()

    def revoke(self, kind: Kind, name: str, *, tenant: str = "") -> None:
        """Revoke for every process of this home, at once and durably; grants and subjects are a tenant's.

        Raises:
            InvalidRequest: The name cannot be one.
            ExecutionFailed: The disk is full or failing; nothing was revoked.
            Denied: The list is damaged, and must be repaired before anything is added to it.
        """
        if not name or len(name) > _MOST_ID or len(tenant) > _MOST_ID:
            raise InvalidRequest(f"{name[:100]!r} cannot be revoked", reason="invalid_name")
        path = [kind, tenant, name] if kind in ("grant", "subject") else [kind, name]
        self.create()
        self._current()
        with private_directory(self._directory, make=False) as directory:
            fd = open_file(directory, _NAME, os.O_RDWR | os.O_APPEND)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                size = os.fstat(fd).st_size
                try:
                    write_all(fd, _line({"revoke": path, "at": self._clock.now_ms()}))
                    os.fsync(fd)
                except OSError as error:
                    os.ftruncate(fd, size)  # a full disk must not leave half a line, which would refuse everything
                    raise ExecutionFailed(f"nothing was revoked: {error.strerror}", reason="io") from error
            finally:
                os.close(fd)

    def create(self) -> None:
        """Make an empty list where there is none and nothing was signed yet.

        Raises:
            Denied: There is none, and there must have been one.
        """
        if (self._directory / _NAME).exists() or self._lost():
            self._current()
            return
        with private_directory(self._directory, make=True) as directory:
            try:
                create_file(directory, _NAME, _HEADER)
            except FileExistsError:
                return

    def _current(self) -> dict[tuple[str, ...], int]:
        stamp = self._look()
        if stamp is None:
            if not self._lost():
                return {}
            # the list and the first key may have been made since we looked
            stamp = self._look()
            if stamp is None:
                raise _unreadable("it is gone")
        if stamp != self._stamp:
            with self._lock:
                self._read()
        return self._revoked

    def _look(self) -> _Stamp | None:
        try:
            return _stamp((self._directory / _NAME).stat())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(error.strerror or "it cannot be looked at") from error

    def _lost(self) -> bool:
        """Whether there was a list: this process has read it, or there are keys, which are made after it."""
        return self._stamp is not None or self._keys.is_dir()

    def _read(self) -> None:
        try:
            with private_directory(self._directory, make=False) as directory:
                fd = open_file(directory, _NAME, os.O_RDONLY)
            try:
                stamp, revoked = _read_whole(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise _unreadable(error.strerror or "it cannot be read") from error
        except Unavailable as error:
            raise _unreadable(str(error)) from error
        if any(revoked.get(path, -1) < at for path, at in self._revoked.items()):
            raise _unreadable("something that was revoked is no longer in it")
        # in this order: who sees the new stamp also sees the new list
        self._revoked = revoked
        self._stamp = stamp


def _read_whole(fd: int) -> tuple[_Stamp, dict[tuple[str, ...], int]]:
    try:
        return _stamp(os.fstat(fd)), _parse(read_some(fd, _MOST_BYTES + 1))
    except Denied:
        # half a line may be one that is being written: whoever writes holds the lock until it is whole
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.lseek(fd, 0, os.SEEK_SET)
        return _stamp(os.fstat(fd)), _parse(read_some(fd, _MOST_BYTES + 1))


def _stamp(seen: os.stat_result) -> _Stamp:
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _parse(content: bytes) -> dict[tuple[str, ...], int]:
    if len(content) > _MOST_BYTES:
        raise _unreadable("it is too long")
    if not content.startswith(_HEADER) or not content.endswith(b"\n"):
        raise _unreadable("its beginning or its end is missing")
    revoked: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(content[len(_HEADER) :].split(b"\n")[:-1], start=2):
        path, at = _entry(line, number)
        revoked[path] = max(at, revoked.get(path, 0))
    return revoked


def _entry(line: bytes, number: int) -> tuple[tuple[str, ...], int]:
    try:
        check, _, body = line.partition(b" ")
        form: Any = json.loads(body)
        path, at = tuple(form["revoke"]), form["at"]
        whole = check == b"%08x" % zlib.crc32(body)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _unreadable(f"line {number} is damaged") from None
    if not whole or type(at) is not int or not path or path[0] not in KINDS:
        raise _unreadable(f"line {number} is damaged")
    return path, at


def _line(form: dict[str, Any]) -> bytes:
    body = canonical(form)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _unreadable(problem: str) -> Denied:
    return Denied(
        f"the list of what was revoked cannot be used: {problem}",
        reason="revocations_unreadable",
        fix="restore $RINGFENCE_HOME/revocations/list from a backup, or repair the line; until then nothing is granted",
    )
