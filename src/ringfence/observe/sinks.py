"""Where events go: what a sink promises a lane, and the sinks that need no network."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ringfence.observe.settings import Only

Record = Mapping[str, Any]
Encode = Callable[[Record, str], bytes | None]  # a record and its hash in hex; None: there is nothing to say of it


class SinkUnready(Exception):
    """It cannot be told now; the same event is offered again later."""


class SinkFailed(SinkUnready):
    """It broke over this event; the same is offered again, though not for ever."""


class SinkRefused(Exception):
    """It will never take this event; the next one is offered."""


class Sink(Protocol):
    """What a lane delivers to, from its own thread and nowhere else."""

    @property
    def name(self) -> str:
        """What tells it from the others, also after a restart."""
        ...

    def deliver(self, record: Record, record_hash: str) -> None:
        """Hand over one record, or pass over one that is not for it.

        Raises:
            SinkUnready: Not now; it is offered again.
            SinkRefused: Never; it is passed over.
        """
        ...

    def deliver_note(self, note: str) -> None:
        """Hand over one signed checkpoint; raises as `deliver` does."""
        ...

    def close(self) -> None:
        """Let go of what is held open."""
        ...


class Transport(Protocol):
    """Carries bytes that somebody else has encoded; raises as `Sink.deliver` does."""

    def send(self, body: bytes, content_type: str) -> None:
        """Hand over one body whole, or not at all."""
        ...

    def close(self) -> None:
        """Let go of what is held open."""
        ...


class EncodedSink:
    """Encodes what its filter lets through, and has a transport carry it."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        encode: Encode,
        *,
        only: Only = Only.ALL,
        content_type: str = "application/cloudevents+json",
    ) -> None:
        self._name = name
        self._transport = transport
        self._encode = encode
        self._only = only
        self._content_type = content_type

    @property
    def name(self) -> str:
        """The name in the settings."""
        return self._name

    def deliver(self, record: Record, record_hash: str) -> None:
        """Encode and send a record that is for this sink."""
        if self._only is Only.VIOLATIONS and not is_violation(record):
            return
        body = self._encode(record, record_hash)
        if body is not None:
            self._transport.send(body, self._content_type)

    def deliver_note(self, note: str) -> None:
        """Send a checkpoint as the text it was signed as."""
        self._transport.send(note.encode(), "text/plain; charset=utf-8")

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()


def is_violation(record: Record) -> bool:
    """Whether a rule stopped this call, before it began or while it ran."""
    return record.get("type") == "decision.denied" or (
        record.get("type") == "exec.end" and record.get("status") == "denied"
    )


class FileLines:
    """Appends each body as a line to a file that any number of processes share, and rotates it by size.

    The file is opened without following a link and must be a plain file: whoever can replace it with a link or a fifo
    would otherwise choose which file we append to, or stop the lane. A line is there whole or not at all.
    """

    def __init__(self, path: str, *, max_bytes: int = 64 * 1024 * 1024, keep: int = 5) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = -1

    def send(self, body: bytes, content_type: str) -> None:
        """Append one line; a checkpoint, which is several, stands as it was signed, with an empty line after it."""
        del content_type
        try:
            self._append(body + b"\n")
        except OSError as error:
            self.close()
            raise SinkUnready(f"{self._path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _append(self, line: bytes) -> None:
        while True:
            if self._fd < 0:
                self._fd = self._opened()
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                if not self._is_current():  # rotated, removed or replaced since it was opened
                    continue
                size = os.fstat(self._fd).st_size
                if size and size + len(line) > self._max_bytes:
                    self._rotate()
                    continue
                self._write_whole(line, size)
                return
            finally:
                if self._fd >= 0:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        fd = os.open(self._path, flags, 0o600)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(fd)
            raise OSError("not a plain file with one name")
        return fd

    def _is_current(self) -> bool:
        ours = os.fstat(self._fd)
        try:
            there = os.lstat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            self.close()
            return False
        return True

    def _rotate(self) -> None:
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}.{number}").replace(f"{self._path}.{number + 1}")
        self._path.replace(f"{self._path}.1")

    def _write_whole(self, line: bytes, size: int) -> None:
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            line = b"\n" + line  # a line that a power loss cut short must not swallow this one
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, size)  # the disk is full: half a line would be no line at all
            raise


class Stdout:
    """Writes each body as a line to the process's standard output, for a collector that reads it."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd

    def send(self, body: bytes, content_type: str) -> None:
        """Write one line; a reader that does not read holds up this lane and nothing else."""
        del content_type
        line = body if body.endswith(b"\n") else body + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as error:
            raise SinkUnready(f"standard output: {error.strerror}") from error

    def close(self) -> None:
        """Leave standard output open: it is the application's."""
