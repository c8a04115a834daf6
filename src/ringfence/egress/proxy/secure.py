"""TLS on a wire of the proxy: the library turns bytes into bytes, and the wire moves them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from ringfence.egress.proxy.wires import Wire

_RECORDS = 64 * 1024
_CUT = "UNEXPECTED_EOF_WHILE_READING"  # for which Python 3.11 has no class


class SecureWire(Wire):
    """One end of a connection that is encrypted; used as a plain one is."""

    def __init__(self, wire: Wire, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        """Take over `wire`, and what was read from it already."""
        super().__init__(wire.end, wire.buffer)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=host)
        self._in.write(wire.ahead)
        wire.ahead = b""
        self._sending = asyncio.Lock()
        self.ended_well = False
        """Whether the other side said that nothing more comes: else somebody may have cut it."""

    async def shake(self) -> None:
        """Agree on keys.

        Raises:
            OSError: The other side went away, or is not who it should be.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._take_records():
                    raise ConnectionResetError from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    await self._flush()  # the alert that tells the other side why
                raise
            else:
                await self._flush()
                return

    async def read_more(self) -> bool:
        """Wait for something to come, and put it to what is ahead; False at the end."""
        size = await self._read(16 * 1024)
        self.ahead += self.buffer[:size]
        return bool(size)

    async def send(self, data: bytes) -> None:
        """Send all of it."""
        if data:
            self._tls.write(data)
            await self._flush()

    async def send_buffered(self, size: int) -> None:
        """Send what the buffer begins with."""
        if size:
            self._tls.write(self.buffer[:size])
            await self._flush()

    async def _read(self, most: int) -> int:
        await asyncio.sleep(0)  # a fast connection must not keep the others waiting
        while True:
            try:
                size: int = self._tls.read(most, self.buffer)  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                await self._flush()
                await self._take_records()
            except ssl.SSLZeroReturnError:
                self.ended_well = True
                return 0
            except ssl.SSLError as error:
                if isinstance(error, ssl.SSLEOFError) or error.reason == _CUT:
                    return 0
                raise
            else:
                self.ended_well = self.ended_well or not size
                return size

    async def _take_records(self) -> bool:
        size = await super()._read(_RECORDS)
        if size:
            self._in.write(self.buffer[:size])
        else:
            self._in.write_eof()
        return bool(size)

    async def _flush(self) -> None:
        async with self._sending:  # what one task encrypted first has to go out first
            if self._out.pending:
                await self._loop.sock_sendall(self.end, self._out.read())

    def end_sending(self) -> None:
        """Tell the other side that nothing more comes; one that is closed without this was cut, and sees that."""
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self.end.send(self._out.read())
        super().end_sending()
