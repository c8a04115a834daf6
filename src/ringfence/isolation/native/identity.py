"""Which host ids a box runs under: never 0, and as root ids that belong to nobody, of this run or session alone."""

from __future__ import annotations

from ringfence.workspaces.ids import SESSION_UIDS

RANGE = 65_536
_PREFERRED_BASE = 0x7246_0000


def choose_base(uid_map: str) -> int | None:
    """Return the first id of a range for runs that is mapped here, given the text of `/proc/self/uid_map`."""
    mapped = [tuple(map(int, line.split())) for line in uid_map.splitlines() if line.strip()]
    for inside, _, count in mapped:
        if inside <= SESSION_UIDS.start and inside + count >= _PREFERRED_BASE + RANGE:
            return _PREFERRED_BASE
    return None


def id_map(base: int) -> str:
    """Return the map of a zygote's namespace: the ids of runs, then those of sessions."""
    return f"0 {base} {RANGE}\n{RANGE} {SESSION_UIDS.start} {len(SESSION_UIDS)}\n"


def run_offset(counter: int) -> int:
    """Return the id, in the zygote's namespace, of a run without a session; never 0, which is the zygote's own."""
    return 1 + counter % (RANGE - 1)


def session_offset(uid: int) -> int:
    """Return the id, in the zygote's namespace, of the session whose files belong to the host's `uid`."""
    return RANGE + (uid - SESSION_UIDS.start)


def host_id(base: int, offset: int) -> int:
    """Return the host's id for an id of the zygote's namespace."""
    return base + offset if offset < RANGE else SESSION_UIDS.start + offset - RANGE
