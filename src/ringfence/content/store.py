"""The optional store of what runs were given and gave back: found by digest, read by nobody without the home's key.

A file's name is a keyed digest of the content's digest: who has the disk and not the key cannot even ask whether some
known content was kept. Destroying the key (`forget_all`) makes every file, and every copy of one, noise.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from ringfence.content import sealed_files as files
from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.private_files import (
    inner_directory,
    list_names,
    private_directory,
    private_directory_if_any,
    remove_file,
    written_at_ms,
)

MOST_BYTES: Final = 256 * 1024 * 1024
KEEP_FREE_BYTES: Final = 64 * 1024 * 1024
"""What is left on the disk: the evidence lies on the same one, and must not want for room because of its content."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_OVERHEAD = 1024
_SWITCH = "switched-on"
_CONTENT = "content"
_RESULTS = "results"
_MOST_RESULT_BYTES = 4096
_MOST_SWITCH_BYTES = 16


class ContentStore:
    """The content of one home; safe to use from any number of threads and processes at a time."""

    def __init__(
        self, home: Path, *, max_content_bytes: int = MOST_BYTES, keep_free_bytes: int = KEEP_FREE_BYTES
    ) -> None:
        """Use the store of `home`; nothing is made before the first content is put."""
        self._path = home / "content"
        self._most = min(max_content_bytes, MOST_BYTES)
        self._keep_free = keep_free_bytes

    @classmethod
    def if_switched_on(cls, home: Path) -> ContentStore | None:
        """Return the store of a home where content is to be kept, and None everywhere else."""
        store = cls(home)
        return store if store.is_switched_on() else None

    def is_switched_on(self) -> bool:
        """Whether content is to be kept in this home; it is not until somebody says so."""
        with private_directory_if_any(self._path) as directory:
            return directory is not None and files.read(directory, _SWITCH, _MOST_SWITCH_BYTES) is not None

    def switch(self, *, on: bool) -> None:
        """Say whether content is to be kept from now on; what was kept stays until it is pruned or forgotten."""
        if on:
            with private_directory(self._path, make=True) as directory:
                files.write(directory, _SWITCH, b"on\n")
            return
        with private_directory_if_any(self._path) as there:
            if there is not None:
                remove_file(there, _SWITCH)

    def put(self, content: bytes) -> str:
        """Keep `content`, and return its digest; of the same content one copy is kept, with the age of the last.

        Raises:
            QuotaExceeded: It is larger than one content may be, or the disk is too full.
            Unavailable: The store is not ours alone, or this machine cannot encrypt.
        """
        if len(content) > self._most:
            raise QuotaExceeded(f"one content is at most {self._most} bytes", reason="disk", limit=self._most)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        with self._opened(_CONTENT, make=True) as (master, directory):
            sealed = files.seal(master, content, digest.encode())
            files.write(directory, _name(master, digest), sealed, keep_free=self._keep_free)
        return digest

    def get(self, digest: str) -> bytes | None:
        """Return the content of a digest, or None where none is kept.

        Raises:
            InvalidRequest: It is no digest.
            Unavailable: What is kept is damaged, or another content: it is not given out.
        """
        _require_digest(digest)
        with self._opened(_CONTENT, make=False) as (master, directory):
            sealed = files.read(directory, _name(master, digest), self._most + _OVERHEAD) if master else None
            if sealed is None:
                return None
            content = files.unseal(master, sealed, digest.encode())
        if content is None or not _is_of(content, digest):
            raise files.damaged()
        return content

    def remove(self, digest: str) -> bool:
        """Delete one content; False where none was kept."""
        _require_digest(digest)
        with self._opened(_CONTENT, make=False) as (master, directory):
            return bool(master) and remove_file(directory, _name(master, digest))

    def remember_result(self, op_digest: str, profile_hash: str, digest: str) -> None:
        """Remember which content an operation under a profile came to last."""
        _require_digest(digest)
        question = _question(op_digest, profile_hash)
        with self._opened(_RESULTS, make=True) as (master, directory):
            sealed = files.seal(master, digest.encode(), question.encode())
            files.write(directory, _name(master, question), sealed, keep_free=self._keep_free)

    def result_of(self, op_digest: str, profile_hash: str) -> str | None:
        """Return the digest of what the operation came to under the profile; None where nobody remembers.

        Raises:
            Unavailable: What is remembered is damaged.
        """
        question = _question(op_digest, profile_hash)
        with self._opened(_RESULTS, make=False) as (master, directory):
            sealed = files.read(directory, _name(master, question), _MOST_RESULT_BYTES) if master else None
            if sealed is None:
                return None
            answer = files.unseal(master, sealed, question.encode())
        if answer is None or not _DIGEST.match(answer.decode("ascii", "replace")):
            raise files.damaged()
        return answer.decode("ascii")

    def prune(self, before_ms: int, *, held: Iterable[str] = ()) -> int:
        """Delete what was last put before a time, except the `held` digests; return how many contents are gone."""
        gone = 0
        for part in (_CONTENT, _RESULTS):
            with self._opened(part, make=False) as (master, directory):
                if not master:
                    continue
                kept = {_name(master, digest) for digest in held}
                for name in list_names(directory):
                    written = written_at_ms(directory, name)
                    if written is not None and written < before_ms and name not in kept:
                        gone += remove_file(directory, name) and part == _CONTENT
        return gone

    def forget_all(self) -> int:
        """Destroy the key, and with it every content and every copy of one; return how many files were deleted too.

        The key goes first: a machine that fails half way has forgotten. A disk that moves blocks about may keep an old
        one of the key's; who must be sure of that destroys the disk, or keeps the home on an encrypted one.
        """
        gone = 0
        with private_directory_if_any(self._path) as directory:
            if directory is None:
                return 0
            files.destroy_key(directory)
            for part in (_CONTENT, _RESULTS):
                with inner_directory(directory, part) as inner:
                    gone += sum(remove_file(inner, name) for name in list_names(inner))
        return gone

    @contextlib.contextmanager
    def _opened(self, part: str, *, make: bool) -> Iterator[tuple[bytes, int]]:
        """Open a part of the store with the key of this moment; an empty key where there is none."""
        try:
            with self._opening(make=make) as directory:
                if directory is None:
                    yield b"", -1
                    return
                # read for each use: a key that another process destroyed must not live on in this one
                master = files.make_key(directory) if make else files.read_key(directory)
                if master is None:
                    yield b"", -1
                    return
                with inner_directory(directory, part) as inner:
                    yield master, inner
        except OSError as error:
            raise Unavailable(f"the content store cannot be used: {error.strerror}") from error

    def _opening(self, *, make: bool) -> AbstractContextManager[int | None]:
        return private_directory(self._path, make=True) if make else private_directory_if_any(self._path)


def _name(master: bytes, what: str) -> str:
    return files.derive(master, b"name", what.encode()).hex()


def _question(op_digest: str, profile_hash: str) -> str:
    return f"result\0{op_digest}\0{profile_hash}"


def _is_of(content: bytes, digest: str) -> bool:
    return hmac.compare_digest(f"sha256:{hashlib.sha256(content).hexdigest()}", digest)


def _require_digest(digest: str) -> None:
    if not _DIGEST.match(digest):
        raise InvalidRequest(f"{digest[:100]!a} is not written as sha256:<64 hex digits>", reason="invalid_value")
