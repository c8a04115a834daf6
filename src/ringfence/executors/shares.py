"""How a run with a way out divides what its budget leaves it to send: to its caller as output, and to hosts."""

from __future__ import annotations

from ringfence.capability.limits import Limits


def shares(most: int | None, limits: Limits) -> tuple[int | None, int]:
    """Return the most a run may say, and the most it may send to hosts; together they are never above `most`.

    Where that is less than the limits would give, both get less of it, in proportion: a budget that is nearly used up
    must not leave a run mute, nor one that may say a lot without a single request.
    """
    output, network = limits.stdout_bytes + limits.stderr_bytes, limits.max_bytes_out
    if most is None:
        return None, network
    if most >= output + network:
        return most - network, network
    share = most * network // (output + network)
    return most - share, share
