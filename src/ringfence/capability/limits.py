"""The numbers a run is held to; two sets of limits only ever meet by taking the smaller."""

from __future__ import annotations

from typing import Self

from ringfence.dataclass import dataclass, fields
from ringfence.errors import InvalidRequest

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard bounds of one run; the defaults are the system defaults of every run."""

    wall_seconds: float = 60.0
    cpu_seconds: float = 60.0
    cpus: float = 1.0
    memory_bytes: int = 1024 * MIB
    pids: int = 256
    disk_bytes: int = 256 * MIB
    inodes: int = 16_384
    open_files: int = 1024
    file_bytes: int = 256 * MIB
    stdout_bytes: int = MIB
    stderr_bytes: int = MIB
    artifact_bytes: int = 50 * MIB
    artifact_count: int = 1000
    artifact_depth: int = 16
    max_bytes_in: int = 16 * MIB
    max_bytes_out: int = 16 * MIB
    max_files: int = 1000
    max_depth: int = 16
    max_concurrency: int = 4
    changed_paths: int = 4_194_304
    changed_bytes: int = 16 * 1024 * MIB

    def narrow(self, other: Self) -> Self:
        """Return the limits that satisfy both."""
        return type(self)(**{f.name: min(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)})

    def exceeding(self, ceiling: Self) -> tuple[str, ...]:
        """Name the limits that are above `ceiling`."""
        return tuple(f.name for f in fields(self) if getattr(self, f.name) > getattr(ceiling, f.name))


SYSTEM_CEILING = Limits(
    wall_seconds=3600.0,
    cpu_seconds=3600.0,
    cpus=64.0,
    memory_bytes=64 * 1024 * MIB,
    pids=4096,
    disk_bytes=8 * 1024 * MIB,
    inodes=1_048_576,
    open_files=65_536,
    file_bytes=8 * 1024 * MIB,
    stdout_bytes=64 * MIB,
    stderr_bytes=64 * MIB,
    artifact_bytes=1024 * MIB,
    artifact_count=100_000,
    artifact_depth=64,
    max_bytes_in=1024 * MIB,
    max_bytes_out=1024 * MIB,
    max_files=100_000,
    max_depth=64,
    max_concurrency=1024,
)

# Unless somebody says less, no run is held to them: they are more than a project can hold before and after it.
UNBOUNDED = ("changed_paths", "changed_bytes")

_BEYOND = 1 << 63

# With less of these no box can be built, which would look like a fault of the machine.
SYSTEM_FLOOR = {"open_files": 16, "inodes": 16}


def too_much(changed: tuple[int, int], most: tuple[int, int]) -> str:
    """Tell by how much the paths and bytes that a run changed are more than it may change."""
    pairs = zip(changed, most, ("paths", "bytes"), strict=True)
    return " and ".join(f"it changes {had} {what}, where {may} are allowed" for had, may, what in pairs if had > may)


def as_limits(value: object) -> Limits:
    """Return `value`, which a caller gave, if it is limits.

    Raises:
        InvalidRequest: It is none, or has a number that nobody could even write down in a message.
    """
    if not isinstance(value, Limits):
        fix = "pass ringfence.Limits(memory_bytes=…, pids=…)"
        raise InvalidRequest(f"limits must be a Limits, not {type(value).__name__}", reason="invalid_limit", fix=fix)
    for name, *_ in _BOUNDS:
        number = getattr(value, name)
        if isinstance(number, int) and number >= _BEYOND:
            raise InvalidRequest(f"{name} is beyond every limit that can be", reason="limit_exceeds_ceiling")
        if isinstance(number, int) and number <= -_BEYOND:
            raise InvalidRequest(f"{name} is far below what a limit can be", reason="invalid_limit")
    return value


def check_limits(limits: Limits) -> None:
    """Refuse limits that are not numbers, not positive, below the system's floor or above its ceiling.

    Raises:
        InvalidRequest: Naming the limit.
    """
    for name, kinds, least, most in _BOUNDS:
        value = getattr(limits, name)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InvalidRequest(f"{name} must be a number, not {value!r}", reason="invalid_limit")
        # written so that NaN fails too
        if not value > 0:
            raise InvalidRequest(f"{name} must be greater than 0, not {value}", reason="invalid_limit")
        if value < least:
            raise InvalidRequest(f"{name} must be at least {least}, not {value}", reason="invalid_limit")
        if value > most:
            raise InvalidRequest(
                f"{name} of {value} is beyond the system's ceiling of {most}", reason="limit_exceeds_ceiling"
            )


_BOUNDS = tuple(
    (
        field.name,
        (int, float) if isinstance(field.default, float) else (int,),
        SYSTEM_FLOOR.get(field.name, 0),
        getattr(SYSTEM_CEILING, field.name),
    )
    for field in fields(Limits)
)
