"""What a guest sees when it looks around: described here, built by the backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

DEVICES = ("null", "zero", "full", "random", "urandom")
DIRECTORIES = (
    "proc",
    "dev",
    "dev/shm",
    "etc",
    "tmp",
    "run",
    "var",
    "var/empty",
    "home",
    "home/sandbox",
    "opt",
    "opt/ringfence",
    "opt/ringfence/bin",
    "workspace",
    "workspace/inputs",
    "workspace/work",
    "workspace/artifacts",
)
LINKS = (
    ("/tmp", "var/tmp"),
    ("/workspace/artifacts", "output"),
    ("artifacts", "workspace/output"),
    ("work", "workspace/code"),
    ("work", "workspace/data"),
    ("/proc/self/fd", "dev/fd"),
    ("/proc/self/fd/0", "dev/stdin"),
    ("/proc/self/fd/1", "dev/stdout"),
    ("/proc/self/fd/2", "dev/stderr"),
)
GENERATED = {
    "etc/passwd": "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "sandbox:x:1000:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "ringfence\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class BoxView:
    """What the host decided to show inside; every path here exists on the host and is trusted."""

    trees: tuple[tuple[str, str], ...]
    """Directories or files of the host and where they appear, read-only, in the box."""
    links: tuple[tuple[str, str], ...]
    """Symlinks: what they say and where they are."""
    hidden: tuple[str, ...]
    """Directories inside the trees that appear empty."""

    def to_message(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> BoxView:
        """Rebuild what `to_message` gave."""
        return cls(
            tuple((a, b) for a, b in message["trees"]),
            tuple((a, b) for a, b in message["links"]),
            tuple(message["hidden"]),
        )
