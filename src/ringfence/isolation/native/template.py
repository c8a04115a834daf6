"""The root directory every box of a zygote starts from: read-only system trees and a few generated files."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass
from typing import Any

from ringfence.isolation.native import kernel

# where the new root is assembled; pivot_root only asks that it be a directory
_STAGING_CHOICES = ("/tmp", "/mnt", "/run", "/var")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_DIRECTORIES = (
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
_LINKS = (
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
_GENERATED = {
    "etc/passwd": "sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "sandbox:x:1000:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "ringfence\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, slots=True)
class Template:
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
    def from_message(cls, message: dict[str, Any]) -> Template:
        """Rebuild what `to_message` gave."""
        return cls(
            tuple((a, b) for a, b in message["trees"]),
            tuple((a, b) for a, b in message["links"]),
            tuple(message["hidden"]),
        )


def open_trees(template: Template) -> list[int]:
    """Take detached read-only copies of the trees, while their host paths can still be reached."""
    return [kernel.clone_tree(os.fsencode(source)) for source, _ in template.trees]


def enter(template: Template, trees: list[int]) -> None:
    """Build the root in a private mount namespace and make it the only one this process can see."""
    kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    staging = next(path for path in _STAGING_CHOICES if os.path.isdir(path))
    devices = [kernel.clone_tree(f"/dev/{name}".encode()) for name in _DEVICES]
    limits = b"size=1m,nr_inodes=1024,mode=755"
    kernel.mount(b"tmpfs", staging.encode(), b"tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, limits)
    os.chdir(staging)
    for directory in _DIRECTORIES:
        os.mkdir(directory)
    for (_, target), tree in zip(template.trees, trees, strict=True):
        _attach(tree, target)
    for name, device in zip(_DEVICES, devices, strict=True):
        _attach(device, f"/dev/{name}")
    for says, where in (*_LINKS, *template.links):
        os.makedirs(os.path.dirname(where.lstrip("/")) or ".", exist_ok=True)
        os.symlink(says, where.lstrip("/"))
    for where, text in _GENERATED.items():
        with open(where, "w", encoding="utf-8") as file:
            file.write(text)
    _hide(template.hidden)
    # a full /proc has to be in view, or the kernel refuses the boxes a /proc of their own
    kernel.mount(b"proc", b"proc", b"proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.pivot_root_here()
    kernel.mount(None, b"/", None, kernel.MS_REMOUNT | kernel.MS_BIND | _SEALED)


_SEALED = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV


def _attach(tree: int, target: str) -> None:
    inside = target.lstrip("/")
    os.makedirs(os.path.dirname(inside) or ".", exist_ok=True)
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(inside, exist_ok=True)
    elif not os.path.exists(inside):
        os.close(os.open(inside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    kernel.attach_tree(tree, inside.encode())
    os.close(tree)


def _hide(directories: tuple[str, ...]) -> None:
    for directory in directories:
        inside = directory.lstrip("/")
        if os.path.isdir(inside):
            kernel.mount(b"tmpfs", inside.encode(), b"tmpfs", _SEALED, b"size=4k,nr_inodes=1,mode=755")
