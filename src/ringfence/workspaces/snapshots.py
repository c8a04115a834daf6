"""A session's snapshots: taken, listed, restored and deleted; each is there whole or not at all.

They lie in `snapshots/` beside the work directory, where no guest can reach: one index for each, and a pack with the
contents it added. A snapshot exists from the moment its index takes its name, which is the last step of taking it.
Whatever a killed host leaves before that is removed by the next one who takes or deletes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ringfence.capability.denials import NO_DENIALS, Denials
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable
from ringfence.operation.form import MAX_LABEL
from ringfence.workspaces import snapshot_pack as packs
from ringfence.workspaces import snapshot_store as stored
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.commit import ChangeDenied
from ringfence.workspaces.diff import differing, present
from ringfence.workspaces.names import harmless_path
from ringfence.workspaces.session import SessionWorkspace
from ringfence.workspaces.snapshot_index import (
    MOST_INDEX_BYTES,
    Index,
    SnapshotInfo,
    encode,
)
from ringfence.workspaces.snapshot_pack import Packer
from ringfence.workspaces.snapshot_restoring import check_fits, write_tree
from ringfence.workspaces.snapshot_taking import read_tree

MOST_SNAPSHOTS: Final = 64
STORE_TIMES_QUOTA: Final = 4
"""How many times the quota of the work directory all snapshots of a project may take together."""


Look = Callable[[], None]
"""Called now and then by what takes long; raises to stop it."""


def _go_on() -> None:
    return


@dataclass(frozen=True, slots=True)
class Taken:
    """A new snapshot, and how much of the tree is in none: fifos, sockets and devices."""

    info: SnapshotInfo
    skipped: int


def take(session: SessionWorkspace, label: str, limits: Limits, *, look: Look = _go_on) -> Taken:
    """Keep the work directory as it is now; nobody can change it meanwhile. See `settle` for when it is on the disk.

    Raises:
        InvalidRequest: The label is no text that can be shown.
        QuotaExceeded: There are as many snapshots as may be, or they would take too much room.
        CapabilityBlocked: There are more entries, or deeper ones, than a snapshot holds.
    """
    check_label(label)
    with session.holding() as owner, stored.opened(session, make=True) as store:
        stored.tidy_after_a_kill(store)
        if len(stored.ids(store)) >= MOST_SNAPSHOTS:
            raise QuotaExceeded(
                f"there are {MOST_SNAPSHOTS} snapshots already",
                reason="snapshots",
                limit=MOST_SNAPSHOTS,
                fix="delete one that nobody needs",
            )
        snapshot_id = stored.new_id(store)
        room = STORE_TIMES_QUOTA * limits.disk_bytes - stored.taken_bytes(store)
        with stored.Contents(store) as contents, stored.pack_draft(store, snapshot_id) as pack_fd:
            before = stored.newest(store)
            began_ns = time.time_ns()
            packer = Packer(pack_fd, held=contents.has, most_bytes=room)
            try:
                with acting_as(owner):
                    tree = read_tree(session.work_fd, before, packer, stored=contents.knows, look=look)
            finally:
                packer.stop()
            heads = tree.heads(packer.finish())
            info = SnapshotInfo(
                snapshot_id, label, began_ns // 1_000_000, len(heads), tree.files, tree.size, packer.kept_bytes
            )
            index = encode(Index(info, began_ns, heads, tree.paths, tree.targets))
            if len(index) > MOST_INDEX_BYTES:
                raise QuotaExceeded("the names in the tree are too long for a snapshot", reason="snapshots")
            stored.publish(store, snapshot_id, index, None if packer.is_empty else pack_fd)
    return Taken(info, tree.skipped)


def settle(session: SessionWorkspace, snapshot_id: str) -> None:
    """Wait until a snapshot is on the disk: before that, a power failure may leave one that restoring refuses.

    Nobody has to wait for it unless what the snapshot is of is about to be given up.
    """
    with suppress(InvalidRequest), stored.opened(session) as store:
        stored.settle(store, snapshot_id)


def infos(session: SessionWorkspace) -> list[SnapshotInfo]:
    """Return what there is, oldest first; one whose index cannot be read is left out here and refused by name."""
    try:
        with stored.opened(session) as store:
            return stored.infos(store)
    except InvalidRequest:
        return []


def restore(
    session: SessionWorkspace,
    snapshot_id: str,
    limits: Limits,
    *,
    denials: Denials = NO_DENIALS,
    look: Look = _go_on,
) -> SnapshotInfo:
    """Put the tree of a snapshot in the place of the work directory, in one step, every content checked first.

    Raises:
        ChangeDenied: It would change what `denials` says nobody may change; nothing was changed.
        InvalidRequest: There is no such snapshot.
        QuotaExceeded: It is more than the session may hold now, or than the disk has room for.
        Unavailable: It is not what was written; the work directory was not touched.
    """
    with stored.opened(session) as store:
        index = stored.load(store, snapshot_id)
        check_fits(index.info, limits, store)
        with stored.Contents(store) as contents:

            def fill(work_fd: int) -> None:
                _require_allowed(session, index, denials, look)
                write_tree(index, contents.find, work_fd, look=look)

            session.replace_work(fill)
    return index.info


def reset(session: SessionWorkspace, *, denials: Denials = NO_DENIALS, look: Look = _go_on) -> None:
    """Put an empty work directory in the place of this one, in one step.

    Raises:
        ChangeDenied: It would delete what `denials` says nobody may change; nothing was changed.
    """
    session.replace_work(lambda _: _require_allowed(session, None, denials, look))


def _require_allowed(session: SessionWorkspace, index: Index | None, denials: Denials, look: Look) -> None:
    """Hold the way from what is there to `index`, or to nothing, against what a broker may not write or delete."""
    if denials.changes or denials.paths:
        wanted = {} if index is None else {node.path: node for node in index.nodes()}
        pairs = differing(present(session.work_fd, index, look), wanted)
        names = {os.fsdecode(pair.path): pair.path for pair in pairs}
        refused = denials.denied_writes(sorted(names))
        if refused:
            raise ChangeDenied(tuple(harmless_path(names[name]) for name in refused))


def delete(session: SessionWorkspace, snapshot_id: str) -> int:
    """Delete a snapshot, also a damaged one; return how many bytes of the disk that gave back.

    Raises:
        InvalidRequest: There is no such snapshot.
    """
    with session.holding(), stored.opened(session) as store:
        before = stored.taken_bytes(store)
        stored.remove(store, snapshot_id)
        return max(0, before - stored.taken_bytes(store))


def verify(session: SessionWorkspace) -> dict[str, bool]:
    """Read everything there is and return, for each snapshot, whether it could be restored."""
    found: dict[str, bool] = {}
    with suppress(InvalidRequest), session.holding(), stored.opened(session) as store:
        whole: dict[bytes, bool] = {}
        with stored.Contents(store) as contents:
            for snapshot_id in stored.ids(store):
                try:
                    digests = stored.load(store, snapshot_id).digests()
                except Unavailable:
                    found[snapshot_id] = False
                    continue
                for digest in digests - whole.keys():
                    place = contents.find(digest)
                    whole[digest] = place is not None and packs.is_whole(*place)
                found[snapshot_id] = all(whole[digest] for digest in digests)
    return found


def check_label(label: object) -> None:
    """Refuse a label that could do something to whoever lists it.

    Raises:
        InvalidRequest: It is not text, too long, or not printable.
    """
    if not isinstance(label, str) or len(label) > MAX_LABEL or not label.isprintable():
        raise InvalidRequest(f"a label is at most {MAX_LABEL} printable characters", reason="invalid_text")
