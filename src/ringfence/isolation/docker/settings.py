"""Which engine makes the containers, and from what: the operator's words, checked once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ringfence.dataclass import dataclass
from ringfence.errors import InvalidRequest

SANDBOX_IMAGE: Final = "ringfence/sandbox:latest"
"""What `ringfence image build` makes where nothing else is asked for."""

# an image or a runtime that began with a dash would be read as an option of the engine's command
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}", re.ASCII)
_RUNTIME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", re.ASCII)
_GVISOR: Final = "runsc"
_PROGRAMS: Final = ("docker", "podman", "nerdctl")
_SCHEMES: Final = ("unix://", "tcp://", "ssh://", "npipe://", "fd://", "http://", "https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The container engine to use.

    Raises:
        InvalidRequest: A word of it could be read as something else by the engine's command.
    """

    command: tuple[str, ...] = ("docker",)
    """What is run: `docker`, `podman`, `nerdctl`, or one of them behind something that takes the same words."""
    url: str | None = None
    """Where the engine listens, if not where the command thinks: `unix://…`, `tcp://…`, `ssh://…`."""
    image: str = SANDBOX_IMAGE
    runtime: str | None = None
    """The OCI runtime inside the engine; `runsc` is gVisor."""
    seccomp: Path | None = None
    """The profile to hold containers to; without one it is ours."""
    readonly_root: bool = True
    """Whether the image's own files cannot be written; off only for images that cannot live with it."""
    bring_python: bool = False
    """Whether this machine's own interpreter is shown in the container, for images that have none."""
    remote: bool | None = None
    """Whether the engine is on another machine, and sees none of our files; without a word its address decides."""

    def __post_init__(self) -> None:
        """Refuse what the engine's command would take for an option, or for nothing."""
        if not self.command or not all(self.command) or self.command[0].startswith("-"):
            raise InvalidRequest(
                f"docker.command must name a program, not {list(self.command)!r}",
                reason="invalid_value",
                fix='use command = ["docker"], ["podman"] or ["nerdctl"]',
            )
        if not _IMAGE.fullmatch(self.image):
            raise InvalidRequest(
                f"docker.image is no name of an image: {self.image!r}",
                reason="invalid_value",
                fix=f"use a name such as {SANDBOX_IMAGE} or a digest such as sha256:…",
            )
        if self.runtime is not None and not _RUNTIME.fullmatch(self.runtime):
            raise InvalidRequest(
                f"docker.runtime is no name of a runtime: {self.runtime!r}",
                reason="invalid_value",
                fix="use the name that the engine knows it by, such as runsc",
            )
        if self.url is not None and not self.url.startswith(_SCHEMES):
            raise InvalidRequest(
                f"docker.url must begin with {', '.join(_SCHEMES[:3])}, not {self.url!r}",
                reason="invalid_value",
                fix="use unix:///var/run/docker.sock, or leave it out for the command's own default",
            )

    @property
    def is_gvisor(self) -> bool:
        """Whether the engine's runtime is gVisor, by the name it goes by everywhere."""
        return self.runtime is not None and Path(self.runtime).name.startswith(_GVISOR)

    @property
    def program(self) -> str:
        """The engine's own command among the words: the first that is known to be one, else the first."""
        names = [Path(word).name for word in self.command]
        return next((name for name in names if name.startswith(_PROGRAMS)), names[0])
