"""Artifacts that lie with the service until somebody reads them."""

from __future__ import annotations

from collections.abc import Callable

from ringfence.errors import Unavailable
from ringfence.outcome import Artifact

Fetch = Callable[[int], bytes]
"""Gets a file of at most so many bytes."""


class RemoteArtifact(Artifact):
    """One file the guest left; its bytes come over the connection when they are first read, and are checked then."""

    __slots__ = ("_fetch", "_fetched")
    _fetch: Fetch
    _fetched: bytes | None

    def __init__(self, path: str, size: int, sha256: str, fetch: Fetch) -> None:
        """Know everything but the content."""
        for name, value in (("path", path), ("size", size), ("sha256", sha256), ("_fetch", fetch), ("_fetched", None)):
            object.__setattr__(self, name, value)

    @property
    def content(self) -> bytes:
        """The file's bytes.

        Raises:
            Unavailable: They cannot be had now, or are not those of the run.
        """
        content = self._fetched
        if content is None:
            import hashlib  # not at the top: few results of the command have any

            content = self._fetch(self.size)
            if len(content) != self.size or hashlib.sha256(content).hexdigest() != self.sha256:
                raise Unavailable("the service gave other bytes than the artifact had", reason="damaged")
            object.__setattr__(self, "_fetched", content)
        return content
