"""Who has reached for untrusted content, on disk: seen by every process of a home, and after any restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ringfence.authority.taint import Tainted

if TYPE_CHECKING:
    from ringfence.database.port import Database

_MARK = """
    INSERT INTO taint_mark (tenant, name, exec_id, reached, time_ms) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""


class TaintsInDatabase:
    """Implements `ports.Taints`; every mark is durable before it returns, and nothing is admitted without."""

    def __init__(self, database: Database) -> None:
        """Look in `database`, which everybody who writes to the same journal shares."""
        self._database = database

    async def found(self, tenant: str, names: Sequence[str]) -> Mapping[str, Tainted]:
        """Return the marks on any of the names; see `Taints.found`.

        Raises:
            Unavailable: It cannot be read.
        """
        return await asyncio.to_thread(self._found, tenant, names)

    async def mark(self, tenant: str, names: Sequence[str], tainted: Tainted) -> None:
        """Put a mark on the names; see `Taints.mark`.

        Raises:
            Unavailable: It cannot be written.
        """
        await asyncio.to_thread(self._mark, tenant, names, tainted)

    def _mark(self, tenant: str, names: Sequence[str], tainted: Tainted) -> None:
        with self._database.transaction() as cursor:
            cursor.executemany(_MARK, [(tenant, name, tainted.by, tainted.reached, tainted.at_ms) for name in names])

    def _found(self, tenant: str, names: Sequence[str]) -> Mapping[str, Tainted]:
        places = ", ".join("?" for _ in names)
        # in the turn of those who write: another process may be putting a mark right now
        with self._database.transaction() as cursor:
            rows = cursor.execute(
                f"SELECT name, exec_id, reached, time_ms FROM taint_mark WHERE tenant = ? AND name IN ({places})",
                (tenant, *names),
            ).fetchall()
        return {name: Tainted(by, reached, at_ms) for name, by, reached, at_ms in rows}
