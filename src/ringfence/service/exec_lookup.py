"""Where an execution that is over is looked for: in the journal, in what ended just now, in what was promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ringfence.errors import CapabilityBlocked, InvalidRequest
from ringfence.service import promises
from ringfence.service.exec_finder import Finder, no_such_exec

if TYPE_CHECKING:
    from ringfence.service.callers import Principal
    from ringfence.service.exec_store import ExecStore
    from ringfence.service.exec_views import View
    from ringfence.service.recent import Kept, Recent


_SAID: Final = ("stdout", "stderr")
_IN_BYTES: Final = ("stdout_b64", "stderr_b64")


def sees(who: Principal, tenant: str) -> bool:
    """Whether a caller may know of what is this tenant's."""
    return who.reads is None or who.reads == tenant


def shows_everything(_who: Principal) -> bool:
    """Keep nothing back from anybody."""
    return True


class Lookup:
    """Looks on behalf of a caller: another tenant's is not there. Every method may block."""

    def __init__(self, finder: Finder, store: ExecStore, recent: Recent, shows: Callable[[Principal], bool]) -> None:
        """Nothing is opened yet; `shows` is whether the policy of the moment shows a caller what programs said."""
        self.shows = shows
        self._finder = finder
        self._store = store
        self._recent = recent

    def view(self, who: Principal, exec_id: str) -> View:
        """Return all that is known of an execution; what it said, where the policy shows it.

        Raises:
            InvalidRequest: There is none of this name that the caller may see.
        """
        view = self._view(who, exec_id)
        return view if self.shows(who) else _withheld(view)

    def _view(self, who: Principal, exec_id: str) -> View:
        found, kept = self._finder.find(exec_id), self._kept(who, exec_id)
        if found is not None:
            if not sees(who, found.tenant):
                raise no_such_exec()
            view = self._finder.view(found, exec_id)
            return view if kept is None or kept.result is None else {**view, **kept.view(exec_id)}
        if kept is not None:
            return kept.view(exec_id)
        promised = self._store.find(exec_id)
        if promised is None or not sees(who, promised.tenant):
            raise no_such_exec()
        return promises.view_of(promised)

    def artifact(self, who: Principal, exec_id: str, path: str) -> bytes:
        """Return the bytes of one artifact.

        Raises:
            InvalidRequest: There is none of this name that the caller may see.
            Unavailable: It is not what was written.
        """
        kept = self._kept(who, exec_id)
        if kept is not None and kept.result is not None:
            for artifact in kept.result.artifacts:
                if artifact.path == path:
                    return artifact.content
        found = self._finder.find(exec_id)
        if found is None or not sees(who, found.tenant):
            raise no_such_exec()
        content = self._finder.artifact(found, exec_id, path)
        if content is None:
            raise InvalidRequest("the execution left no artifact of this name", reason="not_found")
        return content

    def output(self, who: Principal, exec_id: str, stream: str) -> bytes:
        """Return what was kept of `stdout` or `stderr`.

        Raises:
            InvalidRequest: There is none that the caller may see.
            CapabilityBlocked: The policy shows nobody what programs say.
        """
        said = self._output(who, exec_id, stream)
        if not self.shows(who):
            raise CapabilityBlocked("the policy shows nobody what programs say", fix="its digest is in the execution")
        return said

    def _output(self, who: Principal, exec_id: str, stream: str) -> bytes:
        kept = self._kept(who, exec_id)
        if kept is not None and kept.result is not None:
            return kept.result.stdout_raw if stream == "stdout" else kept.result.stderr_raw
        found = self._finder.find(exec_id)
        if found is None or not sees(who, found.tenant):
            raise no_such_exec()
        files = self._finder.files(found, exec_id)
        if files is None:
            raise no_such_exec()
        return files.stdout if stream == "stdout" else files.stderr

    def _kept(self, who: Principal, exec_id: str) -> Kept | None:
        kept = self._recent.find(exec_id)
        return kept if kept is not None and sees(who, kept.tenant) else None


def _withheld(view: View) -> View:
    """Return a view as it would have been under a policy that keeps content out of results."""
    told = {name: "" if name in _SAID else value for name, value in view.items() if name not in _IN_BYTES}
    out = told.get("out")
    return {**told, "out": {**out, "preview": ""}} if isinstance(out, dict) else told
