"""The root directory every box of a zygote starts from: read-only system trees and a few generated files."""

from __future__ import annotations

import binascii
import os
import stat

from ringfence.isolation.linux import kernel
from ringfence.isolation.linux.view import DIRECTORIES, GENERATED, LINKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# where the new root is assembled; pivot_root only asks that it be a directory
_STAGING_CHOICES = ("/tmp", "/mnt", "/run", "/var")


DECLARED = "/mnt/"
"""Where the operator's own directories appear."""
TERMINAL = "/run/terminal/tty"
IDLE = "/opt/ringfence/init"
"""The program that is pid 1 of every box."""


def open_trees(config: dict[str, Any]) -> list[int]:
    """Take detached read-only copies of the trees, while their host paths can still be reached."""
    return [kernel.clone_tree(os.fsencode(source)) for source, _ in config["trees"]]


def enter(config: dict[str, Any], trees: list[int]) -> None:
    """Build the root in a private mount namespace and make it the only one this process can see."""
    kernel.mount(None, b"/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    staging = next(path for path in _STAGING_CHOICES if os.path.isdir(path))
    # whichever terminal the one who opens it has; some containers lack it, and few guests ask
    terminal = kernel.clone_tree(b"/dev/tty", devices=True) if os.path.exists("/dev/tty") else None
    devices = [kernel.clone_tree(f"/dev/{name}".encode(), devices=True) for name in config["devices"]]
    limits = b"size=1m,nr_inodes=1024,mode=755"
    kernel.mount(b"tmpfs", staging.encode(), b"tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, limits)
    os.chdir(staging)
    for directory in DIRECTORIES:
        os.mkdir(directory)
    for (_, target), tree in zip(config["trees"], trees, strict=True):
        _attach(tree, target)
        if target.startswith(DECLARED):
            _seal_off(target)
    for name, device in zip(config["devices"], devices, strict=True):
        _attach(device, f"/dev/{name}")
    if terminal is not None:
        _attach(terminal, TERMINAL)  # where every box covers it, and one with terminals takes it from first
    for says, where in (*LINKS, *config["links"]):
        os.makedirs(os.path.dirname(where.lstrip("/")) or ".", exist_ok=True)
        os.symlink(says, where.lstrip("/"))
    for where, text in GENERATED.items():
        with open(where, "w", encoding="utf-8") as file:
            file.write(text)
    with open(IDLE.lstrip("/"), "wb") as file:
        file.write(binascii.a2b_base64(config["idle"]))
    os.chmod(IDLE.lstrip("/"), 0o555)  # noqa: S103  a program everybody may run
    _hide(config["hidden"])
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


def _seal_off(target: str) -> None:
    """Put an overlay over a directory of the host: what listens in it cannot be reached.

    For a socket or a fifo it makes no difference that its mount is read-only: whoever may write to it connects. Seen
    through an overlay it is another inode, behind which nobody listens.
    """
    inside = target.lstrip("/").encode()
    kernel.mount(b"overlay", inside, b"overlay", _SEALED, b"lowerdir=%s:var/empty,userxattr" % inside)


def _hide(directories: list[str]) -> None:
    for directory in directories:
        inside = directory.lstrip("/")
        if os.path.isdir(inside):
            kernel.mount(b"tmpfs", inside.encode(), b"tmpfs", _SEALED, b"size=4k,nr_inodes=1,mode=755")
