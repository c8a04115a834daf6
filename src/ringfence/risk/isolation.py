"""Which isolation a risk demands in each security mode, and which class of isolation a box was observed to have.

| risk | PERMISSIVE | STRICT |
|---|---|---|
| safe | process | os |
| low, medium | os | container |
| high | os, container preferred | container |
| critical | container, a person's word | container or stronger, a person's word |

For code; an operation that runs none is a broker's. Static analysis never lowers STRICT to a plain process.
"""

from __future__ import annotations

from ringfence.authority.levels import IsolationLevel, RiskLevel
from ringfence.authority.profile import SecurityMode
from ringfence.dataclass import dataclass
from ringfence.outcome import Layers, SandboxType

# Of what the host reads from the sealed worker; one missing, and the box is not container-class.
CONTAINER_NAMESPACES = frozenset({"user", "mnt", "pid", "net", "ipc", "uts"})


@dataclass(frozen=True, slots=True)
class RequiredIsolation:
    """The least that is accepted, what is taken when it can be had, and whether a person must approve the call."""

    least: IsolationLevel
    preferred: IsolationLevel
    needs_call_consent: bool = False


def required_isolation(
    risk: RiskLevel,
    mode: SecurityMode,
    *,
    runs_code: bool = True,
    strongest: IsolationLevel = IsolationLevel.CONTAINER,
) -> RequiredIsolation:
    """Return what `risk` demands in `mode`; `strongest` is what the deployment configured for critical code."""
    critical = risk is RiskLevel.CRITICAL
    if not runs_code:
        return RequiredIsolation(IsolationLevel.BROKER, IsolationLevel.BROKER, critical)
    if risk is RiskLevel.SAFE:
        level = IsolationLevel.PROCESS if mode is SecurityMode.PERMISSIVE else IsolationLevel.OS
        return RequiredIsolation(level, level)
    if critical:
        level = max(IsolationLevel.CONTAINER, strongest if mode is SecurityMode.STRICT else IsolationLevel.CONTAINER)
        return RequiredIsolation(level, level, needs_call_consent=True)
    least = IsolationLevel.OS if mode is SecurityMode.PERMISSIVE else IsolationLevel.CONTAINER
    return RequiredIsolation(least, IsolationLevel.CONTAINER if risk is RiskLevel.HIGH else least)


def isolation_of(sandbox_type: SandboxType, layers: Layers) -> IsolationLevel:
    """Return the class of a box by the layers the host observed on it, whatever its kind promises.

    A native box with every layer is container-class; Landlock and cgroups are taken where the kernel has them, and
    their lack is reported in `layers`. A box nobody observed is worth no more than a process; one that an engine on
    another machine says it made, no more than one of the operating system.
    """
    if sandbox_type is SandboxType.SUBPROCESS:
        return IsolationLevel.PROCESS
    if sandbox_type is SandboxType.GVISOR:
        return _of_gvisor(layers)
    if sandbox_type is SandboxType.DOCKER and layers.container is not None:
        return _of_a_container(layers)
    if sandbox_type is SandboxType.AIO:
        return IsolationLevel.OS  # on the word of whoever set the service up and gave us its address
    privileges = layers.capabilities_empty and layers.no_new_privs and layers.seccomp_filters > 0
    if not privileges:
        return IsolationLevel.PROCESS
    if set(layers.namespaces) >= CONTAINER_NAMESPACES and layers.host_uid != 0:
        return IsolationLevel.CONTAINER
    return IsolationLevel.OS


def _of_gvisor(layers: Layers) -> IsolationLevel:
    """Judge a box by what was seen of gVisor's kernel: the guest's system calls end in it, so what it may do counts.

    Capabilities that it holds are those of a user namespace of its own; without one, it must have none.
    """
    confined = layers.no_new_privs and layers.seccomp_filters > 0
    alone = set(layers.namespaces) >= CONTAINER_NAMESPACES - {"user"} and layers.host_uid > 0
    powerless = layers.capabilities_empty or "user" in layers.namespaces
    return IsolationLevel.GVISOR if confined and alone and powerless else IsolationLevel.OS


def _of_a_container(layers: Layers) -> IsolationLevel:
    """Judge what an engine made: without privileges to be had, ids it shares with its host open nothing there."""
    privileges = layers.capabilities_empty and layers.no_new_privs and layers.seccomp_filters > 0
    alone = set(layers.namespaces) >= CONTAINER_NAMESPACES - {"user"} and layers.host_uid > 0
    return IsolationLevel.CONTAINER if privileges and alone else IsolationLevel.OS
