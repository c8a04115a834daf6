"""What ended a moment ago is kept for everybody, and nobody's flood takes another's."""

from __future__ import annotations

from ringfence.outcome import ExecutionResult, Status
from ringfence.service.events import Ring
from ringfence.service.recent import Recent


def ended(recent: Recent, exec_id: str, tenant: str, stdout: bytes = b"") -> None:
    result = ExecutionResult(Status.SUCCEEDED, exec_id=exec_id, stdout_raw=stdout)
    recent.keep(exec_id, tenant, Ring(), result, None, None)


def test_many_short_runs_of_one_tenant_take_nothing_from_another() -> None:
    recent = Recent(most_kept=8)
    ended(recent, "ours", "beta")
    for number in range(100):
        ended(recent, f"flood-{number}", "acme")
    assert recent.find("ours") is not None
    assert [number for number in range(100) if recent.find(f"flood-{number}")] == list(range(93, 100))


def test_long_outputs_of_one_tenant_take_nothing_from_another() -> None:
    recent = Recent(most_bytes=100_000)
    ended(recent, "ours", "beta", b"x" * 1000)
    for number in range(100):
        ended(recent, f"flood-{number}", "acme", b"x" * 30_000)
    assert recent.find("ours") is not None
    assert recent.find("flood-99") is not None
    assert recent.find("flood-0") is None


def test_what_is_larger_than_all_there_is_room_for_is_not_kept() -> None:
    recent = Recent(most_bytes=10_000)
    ended(recent, "small", "beta")
    ended(recent, "large", "acme", b"x" * 20_000)
    assert recent.find("large") is None
    assert recent.find("small") is not None
