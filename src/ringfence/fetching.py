"""The part of a manager that reads the internet: one address a call, by the rules of safe retrieval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringfence.errors import CapabilityBlocked

if TYPE_CHECKING:
    from ringfence.outcome import BrokerOutcome


class Fetching:
    """Gives a manager with a `perform` of its own the way to what others publish."""

    perform: Any

    async def fetch_url(self, url: str, *, method: str = "GET", save_as: str | None = None) -> BrokerOutcome:
        """Fetch what is at `url`, with no header and no body of the caller's.

        The outcome says where it came from (`url`, `address`, `hops`), what it is (`status`, `media_type`, `bytes`,
        `digest`) and how it begins (`preview`); all of it is in `content`, unless the policy keeps contents out of
        results. With `save_as` it is written to the workspace too, as an operation of its own, and `out["saved_as"]`
        says where. What comes is a stranger's word: nothing in it was checked but its form.

        Raises:
            InvalidRequest: It is no URL that every client reads alike.
            Denied: The policy does not allow it, or it leads to where nothing is allowed.
            Unavailable: Nobody answers, or not as HTTP says.
            TimedOut: It takes longer than allowed.
        """
        from ringfence.operation.brokered import FsWrite, NetHttp  # not at the top: most managers run code

        outcome: BrokerOutcome = await self.perform(NetHttp(method, url))
        if save_as is None:
            return outcome
        if outcome.content is None:
            raise CapabilityBlocked("the policy keeps contents out of results, so there is nothing to save")
        from ringfence.dataclass import replace

        saved = await self.perform(FsWrite(save_as, outcome.content, overwrite=True))
        return replace(outcome, out={**outcome.out, "saved_as": saved.out["path"], "handle": saved.out["handle"]})
