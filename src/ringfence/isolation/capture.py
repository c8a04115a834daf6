"""A bounded memory of one output stream: it keeps the first bytes up to a cap and counts the rest."""

from __future__ import annotations

from ringfence.outcome import OnOutput


class Capture:
    """Never holds more than its cap, whatever the guest prints."""

    def __init__(self, name: str, cap: int, on_output: OnOutput | None = None) -> None:
        """Pass each kept chunk on to `on_output` as it arrives."""
        self._name = name
        self._cap = cap
        self._on_output = on_output
        self.kept = bytearray()
        self.seen = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self.seen += len(data)
        room = self._cap - len(self.kept)
        if room <= 0:
            return
        piece = data[:room]
        self.kept += piece
        if self._on_output is not None:
            self._on_output(self._name, piece)
