"""Handles: what stands for content in an outcome that does not hold it, and brings back these bytes or none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ringfence.dataclass import dataclass
from ringfence.errors import CapabilityBlocked, InvalidRequest

if TYPE_CHECKING:
    from ringfence.operation.brokered import FsRead

_FORM: Final = re.compile(r"fs:(\d{1,18})\+(\d{1,18}):([0-9a-f]{64}):(.+)\Z", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Handle:
    """Some bytes of a file in the workspace."""

    offset: int
    length: int
    sha256: str
    path: str

    @property
    def read(self) -> FsRead:
        """The operation that reads them."""
        from ringfence.operation.brokered import FsRead

        return FsRead(self.path, self.offset, self.length)

    def require_same(self, content: bytes | None) -> bytes:
        """Return `content` if it is what the handle was given out for.

        Raises:
            CapabilityBlocked: It is not, or there is none.
        """
        import hashlib  # slow to import, and few redeem anything

        if content is None:
            raise CapabilityBlocked("the policy keeps contents out of results", reason="blocked")
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise CapabilityBlocked("the file changed since the handle was given out", reason="changed")
        return content


def read_handle(text: object) -> Handle:
    """Read what outcomes call `handle`.

    Raises:
        InvalidRequest: It is none.
    """
    found = _FORM.match(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequest("this is not the handle of a read or a write", reason="invalid_handle")
    return Handle(int(found[1]), int(found[2]), found[3], found[4])
