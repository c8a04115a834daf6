"""Evidence records as the journal holds them, for counting."""

from __future__ import annotations

from typing import Any

import pytest


def begin(exec_id: str = "ex-1", **members: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "type": "exec.begin",
        "envelope_id": f"ev-{exec_id}",
        "exec_id": exec_id,
        "time_ms": 1_763_269_201_123,
        "tenant": "local",
        "tool_name": "code_run",
        "language": "python",
        "domain": "code",
        "safety": "high",
        "side_effect": "process",
        **members,
    }


def end(exec_id: str = "ex-1", **members: Any) -> dict[str, Any]:
    return {
        "v": 1,
        "type": "exec.end",
        "envelope_id": f"ev-{exec_id}",
        "exec_id": exec_id,
        "time_ms": 1_763_269_201_130,
        "tenant": "local",
        "tool_name": "code_run",
        "status": "ok",
        "outcome": "succeeded",
        "budget_used": {"calls": 1, "bytes_in": 5, "bytes_out": 7, "cpu_ms": 3, "gpu_ms": 0, "file_count": 0},
        "cpu_ms": 3,
        "duration_ms": 5,
        "duration_us": 5_123,
        **members,
    }


def denied(**members: Any) -> dict[str, Any]:
    return {
        **begin(),
        "type": "decision.denied",
        "status": "denied",
        "outcome": "denied",
        "error_code": "SANDBOX.CAPABILITY_BLOCKED",
        "reason": "blocked",
        **members,
    }


class Records:
    """The makers of records."""

    begin = staticmethod(begin)
    end = staticmethod(end)
    denied = staticmethod(denied)


@pytest.fixture(scope="session")
def made() -> type[Records]:
    return Records
