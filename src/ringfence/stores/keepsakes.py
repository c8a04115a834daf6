"""Keeps what came of a run beside its evidence: the files of its project, and its content where that is switched on.

Both are for those who work with the result, and neither is evidence: what cannot be kept is said in the record and in
the result, and the run stays what it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ringfence.dataclass import replace
from ringfence.errors import RingfenceError
from ringfence.outcome import ExecutionResult, Outcome

if TYPE_CHECKING:
    from ringfence.content import ContentStore
    from ringfence.evidence.records import Members
    from ringfence.operation.form import Operation


_SMALL = 64 * 1024


class Keepsakes:
    """Implements `ports.Keep`."""

    def __init__(self, home: Path, content: Callable[[], ContentStore | None]) -> None:
        """`content` returns the store of a home where content is kept; it is asked once, when the first run ends."""
        self._home = home
        self._content = content

    async def __call__(self, begun: Members, ended: Members, operation: Operation, outcome: Outcome) -> Outcome:
        """Keep what there is to keep, and write into `ended` where."""
        lost: list[str] = []
        try:
            content = self._content()
        except (RingfenceError, OSError) as error:
            content = None
            lost.append(f"content: {_reason(error)}")
        project = begun.get("project_id")
        if content is None and not lost and (project is None or not isinstance(outcome, ExecutionResult)):
            return outcome
        if content is None and not lost and isinstance(outcome, ExecutionResult) and _is_small(outcome):
            # four small files that nobody waits for the disk with: handing them to a thread costs more
            return self._keep(begun, ended, operation, outcome, content, lost)
        return await asyncio.to_thread(self._keep, begun, ended, operation, outcome, content, lost)

    def _keep(
        self,
        begun: Members,
        ended: Members,
        operation: Operation,
        outcome: Outcome,
        content: ContentStore | None,
        lost: list[str],
    ) -> Outcome:
        if content is not None:
            try:
                ended["content"] = _put(content, begun, operation, outcome)
            except (RingfenceError, OSError) as error:
                lost.append(f"content: {_reason(error)}")
        if begun.get("project_id") is not None and isinstance(outcome, ExecutionResult):
            try:
                outcome = self._with_files(begun, ended, outcome)
            except (RingfenceError, OSError) as error:
                ended.pop("artifacts_path", None)
                lost.append(f"files: {_reason(error)}")
        if lost:
            ended["not_kept"] = lost
            if isinstance(outcome, ExecutionResult):
                return replace(outcome, notes=(*outcome.notes, *(f"not kept: {each}" for each in lost)))
        return outcome

    def _with_files(self, begun: Members, ended: Members, result: ExecutionResult) -> ExecutionResult:
        from ringfence.evidence.projections.exec_row import kept_in, manifest_json, meta_json
        from ringfence.workspaces import exec_files

        project, exec_id, tenant = begun["project_id"], begun["exec_id"], begun["tenant"]
        ended["artifacts_path"] = exec_files.artifacts_path(project, exec_id, tenant)
        exec_files.write_exec_files(
            self._home,
            project,
            exec_id,
            result,
            manifest=manifest_json(begun, ended),
            meta=meta_json(begun, ended),
            tenant=tenant,
            # Whoever reads them holds them against their digests, and the journal waits for the disk: what a loss of
            # power takes away is said to be gone. Waiting for seven more flushes would double what a run takes.
            durable=False,
        )
        return replace(result, kept_in=kept_in(begun, ended))


def _is_small(result: ExecutionResult) -> bool:
    return not result.artifacts and len(result.stdout_raw) + len(result.stderr_raw) <= _SMALL


def _reason(error: RingfenceError | OSError) -> str:
    return error.reason if isinstance(error, RingfenceError) else type(error).__name__


def _put(content: ContentStore, begun: Members, operation: Operation, outcome: Outcome) -> Members:
    from ringfence.evidence.recorded import operation_digest, operation_to_bytes, to_bytes

    asked, answered = content.put(operation_to_bytes(operation)), content.put(to_bytes(outcome))
    content.remember_result(operation_digest(operation, begun.get("session_id")), begun["profile_hash"], answered)
    return {"operation": asked, "result": answered}
