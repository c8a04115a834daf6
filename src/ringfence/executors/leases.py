"""Writes down which secrets an execution has within reach, before it can use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence.ports import ExecCtx

if TYPE_CHECKING:
    from ringfence.secrets.lending import Lent


async def tell_leases(ctx: ExecCtx, lent: Lent) -> None:
    """Make each lease durable; what cannot be written down is not lent."""
    from ringfence.secrets.lending import record_of

    if ctx.evidence is not None:
        for number, lease in enumerate(lent.leases):
            await ctx.evidence.record(record_of(lease, ctx, number))
