"""The image as a directory: the sandbox image's archive, unpacked once beside it for every box of this user.

Whoever makes boxes from it holds a lock on it; of those that nobody holds, the oldest go when another is unpacked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ringfence.dataclass import dataclass
from ringfence.errors import IsolationUnavailable, Unavailable
from ringfence.images import archive as archives
from ringfence.images.archive import Archive
from ringfence.isolation.linux.view import GENERATED
from ringfence.private_files import private_directory_if_any
from ringfence.runtimes.places import BOX_PACKAGES

# where boxes mount something, and an image made by somebody else may have nothing
_MOUNT_POINTS = (
    *("workspace/inputs", "workspace/work", "workspace/artifacts", "home/sandbox", "tmp", "proc", "dev"),
    *("sys", "mnt", str(BOX_PACKAGES).lstrip("/")),
)
_LAYOUT = 3
"""Which way of unpacking a directory is of: what another release made otherwise is not taken for ours."""
_MOST_UNUSED = 1
_FINISHED, _UNFINISHED = "rootfs-*-*", ".unpacking-*"
_HOSTS = "etc/hosts"
_ALIASES = (
    ("/workspace/artifacts", "output"),
    ("/tmp", "var/tmp"),
    ("artifacts", "workspace/output"),
    ("work", "workspace/code"),
    ("work", "workspace/data"),
)


@dataclass(frozen=True, slots=True)
class Rootfs:
    """What boxes are made from, and by which bytes it is known."""

    path: Path
    name: str
    digest: str


def unpacked(cache: Path) -> Rootfs:
    """Return the newest image that was built, as a directory; the first to ask unpacks it.

    Raises:
        IsolationUnavailable: None was built.
        Unavailable: It is damaged, does not fit on the disk, or lies where somebody else could have put it.
    """
    with private_directory_if_any(cache) as ours:  # what root unpacks must not be what a user left for it
        built = [] if ours is None else archives.all_in(cache)
    if not built:
        raise IsolationUnavailable("there is no sandbox image on this machine", fix="ringfence image build")
    return unpack(built[0])


def unpack(archive: Archive) -> Rootfs:
    """Unpack an archive beside itself, unless it has been."""
    path = archive.path.with_name(f"{archive.path.stem}-{archive.sha256[:16]}-{_LAYOUT}")
    rootfs = Rootfs(path, archive.path.stem, f"sha256:{archive.sha256}")
    if path.is_dir():
        return rootfs
    archives.verified(archive)
    try:
        draft = Path(tempfile.mkdtemp(prefix=_UNFINISHED.rstrip("*"), dir=path.parent))
        held = _held(draft)
        try:
            _extract(archive.path, draft)
            draft.chmod(0o755)
            with contextlib.suppress(OSError):  # another process was faster
                draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(held)
        prune(path)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise Unavailable(
            f"the sandbox image does not fit on the disk at {path.parent}", reason="disk_full", fix="make room there"
        ) from error
    return rootfs


def hold(rootfs: Rootfs) -> int:
    """Return a descriptor that keeps an unpacked image from being removed until it is closed.

    Raises:
        FileNotFoundError: It was removed meanwhile.
    """
    held = _held(rootfs.path)
    try:
        if not os.path.samestat(os.fstat(held), os.stat(rootfs.path)):
            raise FileNotFoundError(errno.ENOENT, "the image was removed", str(rootfs.path))
        with contextlib.suppress(PermissionError):  # whose it is remembers when it was used
            os.utime(held)
    except BaseException:
        os.close(held)
        raise
    return held


def _held(directory: Path) -> int:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def prune(current: Path) -> None:
    """Remove what nobody holds of images other than `current`, but for the one that was used last."""
    beside = current.parent
    others = [path for path in beside.glob(_FINISHED) if path.is_dir() and path != current]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (*others[_MOST_UNUSED:], *beside.glob(_UNFINISHED)):
        with contextlib.suppress(OSError):  # it is held, or somebody else removes it
            _remove_unless_held(path)


def _remove_unless_held(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # under a name that nobody looks for, before it is half of an image; should this end here, the next one goes on
        going = path.with_name(f"{_UNFINISHED.rstrip('*')}{path.name.lstrip('.')}")
        path.rename(going)
        shutil.rmtree(going)
    finally:
        os.close(fd)


def _extract(archive: Path, target: Path) -> None:
    with tarfile.open(archive) as tar:
        # Of what we built ourselves and have just seen to be unchanged; even so, nothing of it goes past `target`.
        tar.extractall(target, _plain(tar, target), numeric_owner=True)  # noqa: S202
    for name in _MOUNT_POINTS:
        _require_inside(target, os.path.dirname(name))
        if (target / name).is_symlink():  # what is mounted there would be mounted where it leads
            (target / name).unlink()
        (target / name).mkdir(parents=True, exist_ok=True)
    _require_inside(target, _HOSTS)
    with contextlib.suppress(FileExistsError, FileNotFoundError), (target / _HOSTS).open("x") as hosts:
        hosts.write(GENERATED[_HOSTS])  # an engine would show one; without it `localhost` is no name
    for says, name in _ALIASES:
        _require_inside(target, os.path.dirname(name))
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # where the image has one of its own, with something in it
            (target / name).rmdir()
        with contextlib.suppress(FileExistsError):
            (target / name).symlink_to(says)


def _plain(tar: tarfile.TarFile, target: Path) -> Iterator[tarfile.TarInfo]:
    """Give everything to whoever unpacks it: in a box it then is nobody's. Of devices, gVisor has its own.

    Each member is looked at when those before it are there: a link among them leads the next one wherever it says.
    """
    for member in tar:
        if member.isdev():
            continue
        _require_inside(target, os.path.dirname(member.name) if member.issym() else member.name)
        if member.islnk():
            _require_inside(target, member.linkname)
        member.uid, member.gid = os.getuid(), os.getgid()
        member.mode &= 0o755
        if member.isdir():
            member.mode |= 0o555  # an empty /root that nobody may enter looks like one that holds something
        yield member


def _require_inside(target: Path, name: str) -> None:
    if os.path.isabs(name) or not Path(os.path.realpath(target / name)).is_relative_to(os.path.realpath(target)):
        raise Unavailable(f"{name} of the image would lie outside of it", reason="damaged", fix="ringfence image build")
