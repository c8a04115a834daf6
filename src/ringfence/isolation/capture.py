"""A bounded memory of one output stream: its head and its tail up to a cap, and a count of what lay between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ringfence.outcome import OnOutput

if TYPE_CHECKING:
    from ringfence.masking import Masker, Masks

_CONTINUED = range(0x80, 0xC0)
_LONGEST = 4  # bytes of one character


class Capture:
    """Never holds more of the guest's bytes than its cap, whatever the guest prints."""

    def __init__(self, name: str, cap: int, on_output: OnOutput | None = None) -> None:
        """Pass every chunk on to `on_output` as it arrives, kept or not: who listens bounds himself."""
        self._name = name
        self._most_tail = cap // 2
        self._most_head = cap - self._most_tail
        self._on_output = on_output
        self._head = bytearray()
        self._tail = bytearray()
        self._masker: Masker | None = None
        self.seen = 0

    def mask_with(self, masker: Masker) -> None:
        """Keep and pass on nothing of the stream that has not gone through `masker`."""
        self._masker = masker

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._masker is None:
            self._take(data)
        elif shown := self._masker.add(data):
            self._take(shown)

    def _take(self, data: bytes) -> None:
        self.seen += len(data)
        room = self._most_head - len(self._head)
        if room > 0:
            self._head += data[:room]
        if room < len(data):
            self._add_to_tail(data[max(room, 0) :])
        if self._on_output is not None:
            self._on_output(self._name, data)

    def _add_to_tail(self, data: bytes) -> None:
        if len(data) >= self._most_tail:
            self._tail[:] = data[len(data) - self._most_tail :]
            return
        del self._tail[: max(0, len(self._tail) + len(data) - self._most_tail)]
        self._tail += data

    @property
    def held(self) -> int:
        """How many bytes are in memory."""
        return len(self._head) + len(self._tail)

    def finish(self) -> tuple[bytes, int]:
        """Return what was kept, and how many bytes were left out.

        Where some were, one line between head and tail says how many. No character is cut in two: what is left of one
        at the cut counts as left out.
        """
        if self._masker is not None and (rest := self._masker.finish()):
            self._take(rest)
        head, tail = self._head, self._tail
        if self.held == self.seen:
            return bytes(head + tail), 0
        del head[len(head) - _unfinished(head) :]
        del tail[: _orphaned(tail)]
        left_out = self.seen - len(head) - len(tail)
        return bytes(head + gap_line(left_out, after=head) + tail), left_out


class Overheard(Capture):
    """Keeps head and tail for the result, as every run does, and passes all of it on."""

    def __init__(self, name: str, cap: int, on_output: OnOutput | None, hear: Callable[[str, bytes], None]) -> None:
        """`hear` is told the name of the stream and every chunk."""
        super().__init__(name, cap, on_output)
        self._named = name
        self._hear = hear

    def _take(self, data: bytes) -> None:
        super()._take(data)
        self._hear(self._named, data)


class Listener:
    """Passes output on to the caller; a caller that raises ends the run, and gets its exception back."""

    def __init__(self, on_output: OnOutput, kill: Callable[[str], None]) -> None:
        """`kill` ends the run; it is told why."""
        self._on_output = on_output
        self._kill = kill
        self.error: Exception | None = None

    def __call__(self, name: str, data: bytes) -> None:
        """Pass on one chunk, unless the caller has raised before."""
        if self.error is not None:
            return
        try:
            self._on_output(name, data)
        except Exception as error:  # noqa: BLE001  the caller's own, raised from `run`
            self.error = error
            self._kill("cancelled")


def mask(captures: Iterable[Capture], masks: Masks | None) -> None:
    """Have nothing kept or passed on that `masks` know, where there are any."""
    if masks:
        for capture in captures:
            capture.mask_with(masks.stream())


def gap_line(left_out: int, *, after: bytes | bytearray = b"\n") -> bytes:
    """Return the line that stands where bytes of an output are missing; it begins one of its own."""
    begin = "" if not after or after.endswith(b"\n") else "\n"
    return f"{begin}[… {left_out} bytes left out …]\n".encode()


def _unfinished(head: bytearray) -> int:
    """Count the bytes at the end that begin a character and do not finish it."""
    for length, byte in enumerate(reversed(head[-_LONGEST + 1 :]), start=1):
        if byte in _CONTINUED:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return length if needed > length else 0
    return 0


def _orphaned(tail: bytearray) -> int:
    """Count the bytes at the beginning that finish a character whose beginning is gone."""
    return next((n for n, byte in enumerate(tail[: _LONGEST - 1]) if byte not in _CONTINUED), min(len(tail), 3))
