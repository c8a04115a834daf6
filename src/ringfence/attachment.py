"""What somebody who stays with a run asks of it, and what the run asks of him: implemented by boxes and processes."""

from __future__ import annotations

from typing import Protocol

from ringfence.dataclass import dataclass
from ringfence.outcome import Layers, SandboxType


@dataclass(frozen=True, slots=True)
class Observed:
    """What the host saw of a box that runs: which one it is, and what isolates it."""

    sandbox_id: str
    sandbox_type: SandboxType
    backend: str
    layers: Layers


class Controls(Protocol):
    """What whoever is attached to a run may do to it while it runs, from the event loop it runs in."""

    @property
    def observed(self) -> Observed:
        """The box it runs in, as the host saw it."""
        ...

    async def send(self, data: bytes) -> None:
        """Give `data` to the guest's input, all of it or nothing; waits while too much is unread.

        Raises:
            InvalidRequest: Its input is closed.
        """
        ...

    async def end_input(self) -> None:
        """Tell the guest that nothing more comes: its input ends, on a terminal as by ^D."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """Give the guest's terminal another size.

        Raises:
            InvalidRequest: It has none.
        """
        ...

    def signal(self, number: int) -> None:
        """Send a signal to the guest: on a terminal an interrupt goes to whoever is in its foreground."""
        ...

    def kill(self, why: str) -> None:
        """End everything in the box; `why` is what the result will say."""
        ...

    def connect(self, port: int) -> int:
        """Return a descriptor that is connected to `port` on the box's own loopback; blocks.

        Raises:
            CapabilityBlocked: The run was not started with this port.
            Unavailable: Nobody listens there, or this backend cannot reach into its boxes.
        """
        ...


class Attachment(Protocol):
    """Somebody who stays with a run: hears all of its output, and may feed, interrupt and end it."""

    terminal: tuple[int, int] | None
    """Rows and columns, when the guest is to have a terminal instead of pipes."""
    idle_seconds: float | None
    """After how long without output and input the run is ended."""
    ports: tuple[int, ...]
    """What of the box's own loopback he may connect to."""

    async def attach(self, controls: Controls) -> None:
        """Take the controls; the run has begun on record, and nothing of it happens before this returns."""
        ...

    def hear(self, name: str, data: bytes) -> None:
        """Take the next bytes of an output, however many there were before; must not raise."""
        ...
