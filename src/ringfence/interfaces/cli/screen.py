"""What a guest prints, made harmless for a terminal: control characters are shown, never obeyed.

A guest that may write escape sequences can retitle the window, fill the clipboard (OSC 52), hide text or answer
on the user's behalf. Every such sequence starts with a control character, so showing those disarms all of them.
"""

from __future__ import annotations

import codecs

_KEPT = "\n\t"
# C0, DEL and C1, then the bidirectional overrides that make text read differently from what it is.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SHOWN = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _CONTROLS if chr(code) not in _KEPT}


class Screen:
    """Translates one stream chunk by chunk; a character split over two chunks stays one character."""

    def __init__(self) -> None:
        # Bytes that are not UTF-8 are shown as \xNN: a raw 0x9b is a CSI to some terminals.
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def show(self, chunk: bytes) -> bytes:
        """Return what may be written to the terminal for `chunk`."""
        return self._escape(self._decoder.decode(chunk))

    def end(self) -> bytes:
        """Return what a character cut off at the end of the stream looks like."""
        return self._escape(self._decoder.decode(b"", final=True))

    @staticmethod
    def _escape(text: str) -> bytes:
        return text.translate(_SHOWN).encode()
