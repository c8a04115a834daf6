"""An execution gone through again with the contents that were kept of it: told from the store, or run once more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.capability.limits import Limits
from ringfence.errors import RingfenceError
from ringfence.evidence.described import CannotTell
from ringfence.evidence.drift import Drift, compare
from ringfence.evidence.recorded import from_bytes, operation_digest
from ringfence.interfaces.cli.evidence_desk import Desk
from ringfence.interfaces.cli.evidence_records import JournalRecords
from ringfence.operation.code import CodeRun, Language

if TYPE_CHECKING:
    from ringfence.outcome import Outcome

Members = dict[str, Any]
NOT_KEPT = "the content of it was not kept: contents are kept only where somebody switched that on"


def simulate(desk: Desk, journal: JournalRecords, begin: Members, end: Members) -> Drift | str:
    """Take the recorded result out of the content store and hold it against the evidence; nothing runs."""
    operation = _operation(journal, begin)
    if isinstance(operation, str):
        return operation
    name = operation_digest(operation, begin.get("session_id"))
    digest = desk.contents.result_of(name, str(begin.get("profile_hash", "")))
    content = None if digest is None else desk.contents.get(digest)
    if content is None:
        return "what came of it was not kept"
    outcome = from_bytes(content)
    return outcome.reason if isinstance(outcome, CannotTell) else compare(begin, end, outcome)


def reexecute(desk: Desk, journal: JournalRecords, begin: Members, end: Members) -> Drift | str:
    """Run it once more in a real box, under the policy of then, and hold what comes out against the evidence."""
    operation = _operation(journal, begin)
    if isinstance(operation, str):
        return operation
    policy = (begin.get("documents") or {}).get("policy")
    text = None if policy is None else journal.document(policy)
    if text is None and policy is not None and not _is_built_in(policy):
        return "the policy it ran under is not in the store"
    with tempfile.TemporaryDirectory(prefix="ringfence-replay-") as directory:
        file = None
        if text is not None and not _is_built_in(str(policy)):
            file = Path(directory) / "policy.yaml"
            file.write_text(text)
        try:
            outcome = _run(desk, operation, begin, file)
        except RingfenceError as error:
            return f"it cannot be run again: {error.code} {error.reason}: {error}"
    return compare(begin, end, outcome)


def _run(desk: Desk, operation: CodeRun, begin: Members, policy: Path | None) -> Outcome:
    import ringfence

    return ringfence.run(
        operation.code,
        language=str(operation.language),
        files=operation.files,
        inputs=operation.inputs,
        packages=operation.packages,
        preload=operation.preload,
        limits=_limits(begin.get("limits", {})),
        security_mode=str(begin.get("security_mode", "strict")),
        role=begin.get("role"),
        policy_file=policy,
        home=desk.home,
        pool_size=0,
    )


def _operation(journal: JournalRecords, begin: Members) -> CodeRun | str:
    """Return the whole operation, from the record and what was kept; or why it cannot be had."""
    op = begin.get("op") or {}
    if op.get("kind") != "code_run":
        return f"only programs are gone through again, and this was {op.get('kind', 'something else')}"
    missing = [
        name for name, there in (("arguments", op.get("arg_count")), ("standard input", op.get("stdin_bytes"))) if there
    ]
    if begin.get("env_keys"):
        missing.append("variables")
    if missing:
        return f"its {' and '.join(missing)} are not kept, only their sizes and names"
    code = journal.content(begin)
    if code is None:
        return NOT_KEPT
    files: dict[str, bytes] = {}
    inputs: dict[str, bytes] = {}
    listed = begin.get("inputs", ())
    if len(listed) != op.get("file_count", 0):
        return "it had more files than a record lists"
    for each in listed:
        content = journal.content_named(f"sha256:{each['sha256']}")
        if content is None:
            return f"its file {each['path']} was not kept"
        place, _, path = str(each["path"]).partition("/")
        (files if place == "work" else inputs)[path] = content
    return CodeRun(
        Language(op["language"]),
        code.decode("utf-8", "surrogatepass"),
        files=files,
        inputs=inputs,
        packages=tuple(op.get("packages", ())),
        preload=tuple(op.get("preload", ())),
    )


def _limits(told: Members) -> Limits:
    fields: dict[str, Any] = {name: told[name] for name in _SAME_NAMES if name in told}
    for name, factor in (("wall", 1000), ("cpu", 1000)):
        if f"{name}_ms" in told:
            fields[f"{name}_seconds"] = told[f"{name}_ms"] / factor
    if "millicpus" in told:
        fields["cpus"] = told["millicpus"] / 1000
    return Limits(**fields)


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


def _is_built_in(digest: str) -> bool:
    from ringfence.authority.policy import BUILT_IN

    return digest == BUILT_IN.policy_version_hash
