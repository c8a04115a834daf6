"""What a skill's permissions mean for its box: whether it is shown the project's files, all of them or none."""

from __future__ import annotations

from ringfence.capability.capabilities import Capabilities
from ringfence.capability.fs import FsRead, FsWrite
from ringfence.errors import CapabilityBlocked

_READ = Capabilities([FsRead("work/**")])
_WRITE = Capabilities([FsWrite("work/**")])


def shows_work(capabilities: Capabilities) -> bool:
    """Whether a run under `capabilities` is to see the work directory of its project.

    Who may write there sees what is there. What a run leaves is held against the capabilities path by path when it is
    over; what it reads cannot be, so a part of the directory is refused rather than shown whole.

    Raises:
        CapabilityBlocked: Only a part of it may be read.
    """
    if reads_part_of_work(capabilities):
        raise CapabilityBlocked(
            "manifest, policy and grant together let the skill read a part of work, and a box is shown all or nothing",
            reason="path",
            fix="allow work/** in all of them, or nothing of work",
        )
    return bool(capabilities.meet(_READ).items or capabilities.meet(_WRITE).items)


def reads_part_of_work(capabilities: Capabilities) -> bool:
    """Whether some paths of work may be read, and not all of them."""
    met = capabilities.meet(_READ)
    return bool(met.items) and met != _READ
