"""What came out otherwise when a recorded run was run again: by digests, because the record holds no content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from ringfence.capability.canonical import canonical
from ringfence.dataclass import dataclass
from ringfence.evidence.described import Record
from ringfence.evidence.effects import runtime_of
from ringfence.outcome import BrokerOutcome, Digest, ExecutionResult, Outcome

_UNKNOWN = object()


class Concern(StrEnum):
    """Whether the program did something else, or was only run elsewhere."""

    RESULT = "result"
    SURROUNDINGS = "surroundings"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recorded."""

    concern: Concern
    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.what}: then {self.then}, now {self.now}"


@dataclass(frozen=True, slots=True)
class Drift:
    """How a second run compares to the first; `not_recorded` names what the record does not say."""

    differences: tuple[Difference, ...] = ()
    not_recorded: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether everything that a result is made of was recorded, and came out again."""
        return not self.not_recorded and all(each.concern is Concern.SURROUNDINGS for each in self.differences)

    def lines(self) -> Iterator[str]:
        """Say it in plain words."""
        changed = [each for each in self.differences if each.concern is Concern.RESULT]
        if changed:
            yield f"it came out otherwise in {len(changed)} respect{'' if len(changed) == 1 else 's'}"
        else:
            yield "it came out the same" if not self.not_recorded else "nothing recorded came out otherwise"
        yield from (f"  {each}" for each in changed)
        elsewhere = [each for each in self.differences if each.concern is Concern.SURROUNDINGS]
        if elsewhere:
            yield "it was run in other surroundings"
            yield from (f"  {each}" for each in elsewhere)
        if self.not_recorded:
            yield f"not recorded: {', '.join(self.not_recorded)}"


def outputs_digest_of(outcome: Outcome) -> dict[str, str | int]:
    """Return the `outputs_digest` member: of a broker what it brought, of a run everything that came out of it."""
    if isinstance(outcome, BrokerOutcome):
        content = outcome.content if outcome.content is not None else canonical(_json(outcome.out))
        return Digest.of(content).to_dict()
    parts = {
        "stdout": Digest.of(outcome.stdout_raw).b64,
        "stderr": Digest.of(outcome.stderr_raw).b64,
        "artifacts": {artifact.path: artifact.sha256 for artifact in outcome.artifacts},
        "exit_code": -1 if outcome.exit_code is None else outcome.exit_code,
    }
    return Digest.of(canonical(parts)).to_dict()


def compare(begin: Record, end: Record, new_result: Outcome) -> Drift:
    """Compare a recorded run with one that was made again from the same inputs."""
    found = _Comparison()
    if isinstance(new_result, BrokerOutcome):
        found.told(Concern.RESULT, "operation", begin.get("op", {}).get("kind", _UNKNOWN), new_result.operation)
        found.told(Concern.RESULT, "outcome", end.get("outcome", _UNKNOWN), "succeeded")
        found.told(Concern.RESULT, "output", end.get("outputs_digest", _UNKNOWN), outputs_digest_of(new_result))
        return found.drift()
    _compare_run(found, end, new_result)
    runtime = runtime_of(begin.get("language"), new_result.isolation)
    if runtime:
        found.told(Concern.SURROUNDINGS, "runtime", end.get("runtime", _UNKNOWN), runtime)
    return found.drift()


class _Comparison:
    def __init__(self) -> None:
        self._differences: list[Difference] = []
        self._not_recorded: list[str] = []

    def told(self, concern: Concern, what: str, then: object, now: object) -> None:
        """Keep a difference; what was not recorded about a result is kept as such, never taken for the same."""
        if then is _UNKNOWN:
            if concern is Concern.RESULT:
                self._not_recorded.append(what)
        elif then != now:
            self._differences.append(Difference(concern, what, _shown(then), _shown(now)))

    def drift(self) -> Drift:
        return Drift(tuple(self._differences), tuple(self._not_recorded))


def _compare_run(found: _Comparison, end: Record, result: ExecutionResult) -> None:
    outcome = end.get("outcome", _UNKNOWN)
    found.told(Concern.RESULT, "outcome", outcome, str(result.status))
    # a record has no nulls: an ended run without an exit code was killed before it had one
    exit_code = end.get("exit_code", None if outcome is not _UNKNOWN else _UNKNOWN)
    found.told(Concern.RESULT, "exit code", exit_code, result.exit_code)
    found.told(Concern.RESULT, "killed by", end.get("killed_by"), result.killed_by)
    for name, data, truncated in (
        ("stdout", result.stdout_raw, result.stdout_truncated),
        ("stderr", result.stderr_raw, result.stderr_truncated),
    ):
        stream = end.get(name)
        if not isinstance(stream, Mapping) or "digest" not in stream:
            found.told(Concern.RESULT, name, _UNKNOWN, None)
            continue
        found.told(Concern.RESULT, name, stream["digest"], Digest.of(data).to_dict())
        found.told(Concern.RESULT, f"{name} truncated", stream.get("truncated", False), truncated)
    _compare_artifacts(found, end, result)
    found.told(Concern.SURROUNDINGS, "backend", end.get("backend", _UNKNOWN), result.backend)
    found.told(Concern.SURROUNDINGS, "box", end.get("sandbox_type", _UNKNOWN), str(result.sandbox_type))
    layers = end.get("layers")
    if isinstance(layers, Mapping):
        now = result.isolation.to_dict()
        container = result.isolation.container
        image = None if container is None else container.image_digest
        found.told(Concern.SURROUNDINGS, "image", end.get("image_digest"), image)
        for layer in sorted(layers.keys() & now.keys() - {"host_uid", "notes", "container", "runtime"}):
            found.told(Concern.SURROUNDINGS, f"layer {layer}", layers[layer], now[layer])


def _compare_artifacts(found: _Comparison, end: Record, result: ExecutionResult) -> None:
    if "artifacts" not in end:
        found.told(Concern.RESULT, "artifacts", _UNKNOWN if result.artifacts else None, None)
        return
    then = {entry["path"]: (entry["size"], entry["sha256"]) for entry in end["artifacts"]}
    now = {artifact.path: (artifact.size, artifact.sha256) for artifact in result.artifacts}
    for path in sorted(then.keys() | now.keys()):
        found.told(Concern.RESULT, f"artifact {path}", then.get(path), now.get(path))


def _shown(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case {"b64": b64, "size": size}:
            return f"{size} bytes ({str(b64)[:12]}…)"
        case (int() as size, str() as sha256):
            return f"{size} bytes ({sha256[:12]}…)"
        case _:
            return str(value)


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    return [_json(each) for each in value] if isinstance(value, list | tuple) else value
