"""What an operation asks for beside being carried out; the guard judges each need as an operation of its own."""

from __future__ import annotations

from typing import ClassVar

from ringfence.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SecretUse:
    """Have the secret of this name within reach."""

    name: str

    kind: ClassVar[str] = "secret_use"
    domain: ClassVar[str] = "secret"


@dataclass(frozen=True, slots=True)
class PortOpen:
    """Have a port of the box reachable from outside it."""

    port: int

    kind: ClassVar[str] = "port_open"
    domain: ClassVar[str] = "port"


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Have a GPU of this class."""

    gpu_class: str

    kind: ClassVar[str] = "gpu_use"
    domain: ClassVar[str] = "sys"


@dataclass(frozen=True, slots=True)
class HostUse:
    """Have a path of the host mounted in the box."""

    path: str

    kind: ClassVar[str] = "host_use"
    domain: ClassVar[str] = "fs.host"


@dataclass(frozen=True, slots=True)
class HostReach:
    """Have a host, or all below a suffix, within reach of code in a box."""

    host: str

    kind: ClassVar[str] = "host_reach"
    domain: ClassVar[str] = "net.http"


Need = SecretUse | PortOpen | GpuUse | HostUse | HostReach
