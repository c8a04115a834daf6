"""The host's end of a container's one stream: messages in both directions, and never a wait without an end."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable

from ringfence.dataclass import dataclass
from ringfence.isolation.ends import Streams
from ringfence.isolation.linux.meter import RunUsage
from ringfence.isolation.linux.streams import write_to_guest
from ringfence.isolation.protocol import Decoder, Kind, encode

MOST_HEARD = 1 << 18
"""No message from inside is longer; one that says it is ends the conversation before anything is kept for it."""

_CHUNK = 1 << 18
_MOST_WORDS = 4096


class Silence(Exception):
    """The other side did not say in time what was due."""


class HungUp(Exception):
    """The stream ended."""


def _nobody() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Line:
    """What a backend has of a container it started: its three streams, and the power to end it.

    `died_of` is asked when the container ended without a word, or its guest was killed and nobody inside can tell why;
    it may block. `usage` returns what the host itself counted for this container, where it did.
    """

    stdin_fd: int
    stdout_fd: int
    stderr_fd: int
    kill: Callable[[], None]
    died_of: Callable[[], str | None]
    usage: Callable[[], RunUsage | None] = _nobody


class Talk:
    """Messages over a line; the line's descriptors are this object's from now on."""

    def __init__(self, line: Line) -> None:
        """Nothing is sent or read yet."""
        self.streams = Streams(line.stdin_fd, line.stdout_fd, line.stderr_fd)
        for fd in (line.stdin_fd, line.stdout_fd, line.stderr_fd):
            os.set_blocking(fd, False)
        self._decoder = Decoder(limit=MOST_HEARD)
        self._heard: deque[tuple[Kind, bytes]] = deque()
        self._unsent: deque[memoryview] = deque()
        self._words = b""
        self._is_quiet = False
        self.is_broken = False
        """Whether nobody takes what is said any more."""

    def say(self, kind: Kind, payload: bytes = b"") -> None:
        """Have a message sent, now or when there is room."""
        self.send(memoryview(encode(kind, payload)))

    def send(self, data: memoryview) -> None:
        """Have bytes sent that are a message or part of one."""
        if len(data) and not self.is_broken:
            self._unsent.append(data)
            self.push()

    @property
    def has_unsent(self) -> bool:
        """Whether something waits for room."""
        return bool(self._unsent)

    @property
    def has_heard(self) -> bool:
        """Whether messages have come that nobody has asked for yet."""
        return bool(self._heard)

    def push(self) -> None:
        """Send as much as there is room for."""
        try:
            while self._unsent:
                data = self._unsent[0]
                count = write_to_guest(self.streams.stdin, data[:_CHUNK])
                if count == len(data):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = data[count:]
        except BlockingIOError:
            return
        except OSError:  # that it is over will be heard on the other stream
            self.is_broken = True
            self._unsent.clear()

    def read(self) -> list[tuple[Kind, bytes]] | None:
        """Return the messages that have come, without waiting; None when there will be no more.

        Raises:
            ProtocolError: What has come is no message.
        """
        if self._heard:
            early = list(self._heard)
            self._heard.clear()
            return early
        try:
            data = os.read(self.streams.stdout, _CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self._decoder.feed(data) if data else None

    def hear(self, deadline: float) -> tuple[Kind, bytes]:
        """Wait for one message, and meanwhile go on sending.

        Raises:
            Silence: None has come by `deadline`, a time of the monotonic clock.
            HungUp: None will come.
            ProtocolError: What has come is no message.
        """
        while not self._heard:
            self._wait(deadline, select.POLLIN)
            messages = self.read()
            if messages is None:
                raise HungUp
            self._heard.extend(messages)
        return self._heard.popleft()

    def flush(self, deadline: float) -> None:
        """Wait until everything was sent.

        Raises:
            Silence: It was not by `deadline`.
        """
        while self._unsent:
            self._wait(deadline, 0)

    def _wait(self, deadline: float, wanted: int) -> None:
        poll = select.poll()
        if wanted:
            poll.register(self.streams.stdout, wanted)
        if not self._is_quiet:
            poll.register(self.streams.stderr, select.POLLIN)
        if self._unsent:
            poll.register(self.streams.stdin, select.POLLOUT)
        left = deadline - time.monotonic()
        ready = dict(poll.poll(left * 1000)) if left > 0 else {}
        if not ready:
            raise Silence
        if self.streams.stderr in ready:
            self._is_quiet = not self.overhear()
        if self.streams.stdin in ready:
            self.push()

    def overhear(self) -> bool:
        """Take what the engine or a failing interpreter prints beside the messages; False at its end."""
        try:
            data = os.read(self.streams.stderr, _MOST_WORDS)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._words = (self._words + data)[-_MOST_WORDS:]
        return bool(data)

    def last_words(self) -> str:
        """Return, in one line, the end of what was printed beside the messages."""
        self.overhear()
        lines = self._words.decode("utf-8", "replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "".join(character if character.isprintable() else "?" for character in said)[:300]

    def close(self) -> None:
        """Let go of the streams."""
        self._unsent.clear()
        self.is_broken = True
        self.streams.close()
