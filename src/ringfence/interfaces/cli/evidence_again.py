"""An execution gone through again with the contents that were kept of it: told from the store, or run once more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.authority.policy import BUILT_IN
from ringfence.capability.canonical import digest_of
from ringfence.capability.limits import Limits
from ringfence.errors import RingfenceError
from ringfence.evidence.correlation import Correlation
from ringfence.evidence.described import CannotTell, inputs_digest_of
from ringfence.evidence.drift import Drift, compare
from ringfence.interfaces.cli.evidence_desk import Desk
from ringfence.interfaces.cli.evidence_records import JournalRecords
from ringfence.operation.code import CodeRun

if TYPE_CHECKING:
    from ringfence.outcome import Outcome

Members = dict[str, Any]
NOT_KEPT = "its content was not kept: that begins with 'ringfence evidence content on'"


def simulate(_: Desk, journal: JournalRecords, begin: Members, end: Members) -> Drift | str:
    """Take the recorded result out of the content store and hold it against the evidence; nothing runs."""
    outcome = journal.result(end)
    if outcome is None:
        return NOT_KEPT
    return outcome.reason if isinstance(outcome, CannotTell) else compare(begin, end, outcome)


def reexecute(desk: Desk, journal: JournalRecords, begin: Members, end: Members) -> Drift | str:
    """Run it once more in a real box, under the policy of then, and hold what comes out against the evidence."""
    operation = journal.operation(end)
    if operation is None:
        return NOT_KEPT
    if isinstance(operation, CannotTell):
        return operation.reason
    if not isinstance(operation, CodeRun):
        return f"only programs are run again, and this was {operation.kind}"
    if operation.process_id is not None:
        return "a cell is not run again: what it did depends on every cell before it"
    if not _LEADS_OUT.isdisjoint(begin.get("op") or ()):
        return "what could reach others is not run again: it would act on them once more, and they are not as they were"
    if inputs_digest_of(operation) != begin.get("inputs_digest"):
        return "the program that was kept is not the one that the record names by its digest"
    policy = str((begin.get("documents") or {}).get("policy", BUILT_IN.policy_version_hash))
    text = journal.document(policy)
    if policy == BUILT_IN.policy_version_hash:
        return _compared(desk, operation, begin, end, None)
    if text is None or digest_of(text.encode("utf-8", "surrogatepass")) != policy:
        return "the policy it ran under is not in the store as it was"
    with tempfile.TemporaryDirectory(prefix="ringfence-replay-") as directory:
        file = Path(directory) / "policy.yaml"
        file.write_text(text)
        return _compared(desk, operation, begin, end, file)


def _compared(desk: Desk, operation: CodeRun, begin: Members, end: Members, policy: Path | None) -> Drift | str:
    try:
        return compare(begin, end, _run(desk, operation, begin, policy))
    except RingfenceError as error:
        return f"it cannot be run again: {error.code} {error.reason}: {error}"


# Not in its session: running it there once more would change files that are somebody's.
def _run(desk: Desk, operation: CodeRun, begin: Members, policy: Path | None) -> Outcome:
    import ringfence

    return ringfence.run(
        operation.code,
        language=str(operation.language),
        args=operation.args,
        stdin=operation.stdin,
        env=operation.env,
        files=operation.files,
        inputs=operation.inputs,
        packages=operation.packages,
        preload=operation.preload,
        cwd=operation.cwd,
        limits=_limits(begin.get("limits", {})),
        security_mode=str(begin.get("security_mode", "strict")),
        role=begin.get("role"),
        policy_file=policy,
        home=desk.home,
        pool_size=0,
        correlation=Correlation(request_id=f"replay of {begin.get('exec_id')}"),
    )


def _limits(told: Members) -> Limits:
    fields: dict[str, Any] = {name: told[name] for name in _SAME_NAMES if name in told}
    for name, factor in (("wall", 1000), ("cpu", 1000)):
        if f"{name}_ms" in told:
            fields[f"{name}_seconds"] = told[f"{name}_ms"] / factor
    if "millicpus" in told:
        fields["cpus"] = told["millicpus"] / 1000
    return Limits(**fields)


_LEADS_OUT = frozenset({"domains", "secrets", "ports"})
_SAME_NAMES = (
    "memory_bytes",
    "pids",
    "disk_bytes",
    "stdout_bytes",
    "stderr_bytes",
    "artifact_bytes",
    "max_bytes_in",
    "max_bytes_out",
)
