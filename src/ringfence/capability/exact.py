"""Capabilities that name exactly one thing, or nothing to choose: temporary space, a GPU class, a secret, a port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ringfence.capability.kind import Kind, invalid
from ringfence.dataclass import dataclass
from ringfence.pattern import pattern

if TYPE_CHECKING:
    from ringfence.operation import needs
    from ringfence.operation.form import Operation

_NAME = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


@dataclass(frozen=True, slots=True)
class TmpUse(Kind):
    """Take temporary space of one's own."""

    tag: ClassVar[str] = "TmpUse"
    name: ClassVar[str] = "tmp.use"

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations."""
        return None if operation.kind in ("tmp_alloc", "tmp_free") else "not_granted"

    def fields(self) -> dict[str, Any]:
        """Return nothing: there is only one."""
        return {}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:  # noqa: ARG003  # checked to be empty by the caller
        """Return the only one."""
        return cls()

    def resource(self) -> str:
        """Return nothing."""
        return ""

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read nothing."""
        if resource:
            raise invalid(cls.tag, f"takes no resource, not {resource!r}")
        return cls()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SysGpu(Kind):
    """Have a GPU of one class."""

    gpu_class: str

    tag: ClassVar[str] = "SysGpu"
    name: ClassVar[str] = "sys.gpu"

    def __post_init__(self) -> None:
        _check_name(self.tag, "class", self.gpu_class)

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations and classes."""
        if operation.kind != "gpu_use":
            return "not_granted"
        return None if cast("needs.GpuUse", operation).gpu_class == self.gpu_class else "scope"

    def fields(self) -> dict[str, Any]:
        """Return the class."""
        return {"class": self.gpu_class}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read the class."""
        return cls(fields.get("class"))  # type: ignore[arg-type]  # refused by the constructor

    def resource(self) -> str:
        """Return the class."""
        return self.gpu_class

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read the class."""
        return cls(resource)


@dataclass(frozen=True, slots=True)
class SecretUse(Kind):
    """Have the secret of one name within reach."""

    secret: str

    tag: ClassVar[str] = "SecretUse"
    name: ClassVar[str] = "secret.use"

    def __post_init__(self) -> None:
        _check_name(self.tag, "name", self.secret)

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations and names."""
        if operation.kind != "secret_use":
            return "not_granted"
        return None if cast("needs.SecretUse", operation).name == self.secret else "scope"

    def fields(self) -> dict[str, Any]:
        """Return the name."""
        return {"name": self.secret}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read the name."""
        return cls(fields.get("name"))  # type: ignore[arg-type]  # refused by the constructor

    def resource(self) -> str:
        """Return the name."""
        return self.secret

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read the name."""
        return cls(resource)


@dataclass(frozen=True, slots=True)
class PortOpen(Kind):
    """Have one port of the box reachable from outside it."""

    port: int

    tag: ClassVar[str] = "PortOpen"
    name: ClassVar[str] = "port.open"

    def __post_init__(self) -> None:
        if type(self.port) is not int or not 0 < self.port < 65536:
            raise invalid(self.tag, f"port must be a number from 1 to 65535, not {self.port!r}")

    def refusal(self, operation: Operation) -> str | None:
        """Refuse other operations and ports."""
        if operation.kind != "port_open":
            return "not_granted"
        return None if cast("needs.PortOpen", operation).port == self.port else "port"

    def fields(self) -> dict[str, Any]:
        """Return the port."""
        return {"port": self.port}

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Self:
        """Read the port."""
        return cls(fields.get("port"))  # type: ignore[arg-type]  # refused by the constructor

    def resource(self) -> str:
        """Return the port."""
        return str(self.port)

    @classmethod
    def parse(cls, resource: str) -> Self:
        """Read the port."""
        if not resource.isdecimal() or not resource.isascii():
            raise invalid(cls.tag, f"{resource!r} is not a port")
        return cls(int(resource))


def _check_name(tag: str, what: str, name: object) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise invalid(tag, f"{what} must be 1 to 128 letters, digits, '_', '-' or '.', not {name!r}")
