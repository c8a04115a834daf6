"""Finds out whether this machine can isolate, by building a real box in throwaway processes and looking at it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache

from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass
from ringfence.errors import RingfenceError
from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.outfit import outfit
from ringfence.isolation.native.backend import NativeBackend
from ringfence.outcome import Layers
from ringfence.ports import WorkerSpec
from ringfence.runtimes.node import NodeCommand
from ringfence.workspaces.session import SessionWorkspace


@dataclass(frozen=True, slots=True)
class Report:
    """What came of the attempt."""

    available: bool
    reason: str
    fix: str | None
    layers: Layers
    facts: Mapping[str, str]


@cache
def probe() -> Report:
    """Start one native worker, observe it from outside, throw it away; the answer holds for this process's life."""
    facts = {"kernel": platform.release(), "machine": platform.machine(), "landlock_abi": str(kernel.landlock_abi())}
    backend = NativeBackend(
        outfit=lambda spec, counted: outfit(spec.packages, spec.preload, None, memory_is_counted=counted),
        session=_no_session,
        node_command=lambda language: NodeCommand([language], "node"),
        limits=Limits(),
    )
    try:
        worker = backend.start(WorkerSpec())
        worker.discard()
    except RingfenceError as refusal:
        return Report(False, str(refusal), refusal.fix, Layers(), facts)
    finally:
        backend.close()
    return Report(True, "a sealed worker was started and observed", None, worker.layers, facts)


def _no_session(session_id: str, tenant: str) -> SessionWorkspace:
    raise ValueError(f"a probe has no session {session_id} of {tenant}")
