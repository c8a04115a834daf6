"""`--artifacts DIR`: what the guest left, written beneath DIR and nowhere else.

DIR must be new or empty, which is checked before anything runs; each file is then created, never overwritten, by
walking from DIR's own descriptor without following links.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ringfence.errors import InvalidRequest, PathTraversalError, Unavailable
from ringfence.outcome import Artifact

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class ArtifactDirectory:
    """The directory a person named; open from before the run until its artifacts are written."""

    def __init__(self, path: str) -> None:
        """Make and open `path`.

        Raises:
            InvalidRequest: It is not a directory, cannot be written, or already holds something.
        """
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, _DIRECTORY)
            try:
                with os.scandir(self._fd) as entries:
                    holds_something = any(entries)
                if holds_something:
                    raise InvalidRequest(
                        f"--artifacts {path}: already holds files, which are never overwritten",
                        reason="artifacts_not_empty",
                        fix="name a new or empty directory",
                    )
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=self._fd):
                    raise InvalidRequest(f"--artifacts {path}: is not writable", reason="artifacts_unwritable")
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise InvalidRequest(f"--artifacts {path}: {error.strerror}", reason="artifacts_unwritable") from error

    def keep(self, artifacts: Sequence[Artifact]) -> None:
        """Write every artifact.

        Raises:
            PathTraversalError: A name would lead outside; nothing is written for it.
            Unavailable: The file system refused.
        """
        for artifact in artifacts:
            try:
                self._write(artifact)
            except OSError as error:
                raise Unavailable(
                    f"cannot write artifact {artifact.path!r}: {error.strerror}", reason="artifacts_not_written"
                ) from error

    def close(self) -> None:
        """Give the directory back."""
        os.close(self._fd)

    def _write(self, artifact: Artifact) -> None:
        *parents, name = _harmless_parts(artifact.path)
        fd = os.dup(self._fd)
        try:
            for parent in parents:
                with suppress(FileExistsError):
                    os.mkdir(parent, dir_fd=fd)
                deeper = os.open(parent, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = deeper
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, 0o666, dir_fd=fd), "wb") as file:
                file.write(artifact.read())
        finally:
            os.close(fd)


def _harmless_parts(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise PathTraversalError(f"artifact {path!r} is not a plain relative path")
    return parts
