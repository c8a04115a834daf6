"""What is refused before anybody is asked: an operation that cannot be carried out as written, limits that are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence import operation as operations
from ringfence.capability.limits import SYSTEM_CEILING, SYSTEM_FLOOR, Limits
from ringfence.dataclass import fields
from ringfence.errors import InvalidRequest
from ringfence.operation import CodeRun

if TYPE_CHECKING:
    from ringfence.operation.form import Operation

_BOUNDS = tuple(
    (
        field.name,
        (int, float) if isinstance(field.default, float) else (int,),
        SYSTEM_FLOOR.get(field.name, 0),
        getattr(SYSTEM_CEILING, field.name),
    )
    for field in fields(Limits)
)


def check_operation(operation: Operation) -> None:
    """Refuse what could not be carried out exactly as written.

    Raises:
        InvalidRequest: Naming what is wrong.
    """
    if not isinstance(operation, CodeRun):
        from ringfence.operation import form  # not at the top: most calls run code

        form.check(operation)  # type: ignore[arg-type]  # which refuses what is none of its kinds
        return
    operations.check(operation)
    if operation.files or operation.inputs:
        _check_names(operation)


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


def _check_names(operation: CodeRun) -> None:
    """Refuse names of files that could not be placed exactly so.

    Raises:
        InvalidRequest: Naming the path.
    """
    from ringfence.workspaces import place  # not at the top: most runs bring no files

    place.check_names(operation.files, under="work")
    place.check_names(operation.inputs, under="inputs")
