"""What the bodies of AIO's requests have in common: their bounds, and that unknown members are let be."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.convertors import StringConvertor, register_url_convertor

from ringfence.errors import Denied

Text = Annotated[str, StringConstraints(max_length=32 * 1024 * 1024)]
FilePath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
SessionName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SessionPath = Annotated[str, Path(min_length=1, max_length=128)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
WholeSeconds = Annotated[int, Field(ge=0, le=86_400)]
Number = Annotated[int, Field(ge=0, lt=2**53)]

# Names that are paths of their own beside the one of a session or a skill; nothing else may be called so there.
_TAKEN = "create|update|stats|metadatas|register"


class _Named(StringConvertor):
    regex = rf"(?!(?:{_TAKEN})(?:/|\Z))[^/]+"


register_url_convertor("aio_name", _Named())


class Asked(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(strict=True, extra="ignore")


def refuse_sudo(*, sudo: bool | None) -> None:
    """Refuse to act as root, which nobody is in a box or in a project.

    Raises:
        Denied: It was asked for.
    """
    if sudo:
        raise Denied("there is no sudo here", reason="not_granted", fix="leave sudo out")
