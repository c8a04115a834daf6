"""No file, name or refusal that a run leaves tells its secret, however its guest laid them out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.capability.limits import Limits
from ringfence.masking import Masks
from ringfence.ports import EVERYTHING
from ringfence.workspaces import masked
from ringfence.workspaces.acting import acting_as
from ringfence.workspaces.masked import mask_files
from ringfence.workspaces.run_directory import RunDirectory

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYkey"
GUEST = (65534, 65534)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A directory of the guest's own; whoever is root is the guest meanwhile, as he is in a harvest."""
    owner = GUEST if os.geteuid() == 0 else None
    if owner is not None:
        os.chown(tmp_path, *owner)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with acting_as(owner):
            yield fd
    finally:
        os.close(fd)


def masks() -> Masks:
    return Masks({"KEY": SECRET.encode()})


def names(root: int) -> list[str]:
    return sorted(os.path.join(place, name) for place, inner, files, _ in os.fwalk(".", dir_fd=root) for name in files)


def write(root: int, path: str, text: str) -> None:
    parent = os.path.dirname(path)
    made = ""
    for part in filter(None, parent.split("/")):
        made += part + "/"
        if not os.access(made, os.F_OK, dir_fd=root):
            os.mkdir(made, 0o755, dir_fd=root)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=root)
    os.write(fd, text.encode())
    os.close(fd)


def test_a_secret_with_a_slash_in_it_is_found_in_the_path_that_it_makes(root: int) -> None:
    write(root, f"kept/{SECRET}", "empty")
    write(root, "kept/other", "plain")
    mask_files(root, masks())
    assert names(root) == ["./kept/other"]


def test_a_directory_that_its_guest_closed_keeps_no_secret(root: int) -> None:
    write(root, "closed/file", f"key={SECRET}")
    write(root, f"x/{SECRET}/deep/file", "empty")
    for closed in ("closed", f"x/{SECRET}/deep", f"x/{SECRET}", "x"):
        os.chmod(closed, 0o500, dir_fd=root)
    mask_files(root, masks())
    assert names(root) == ["./closed/file"]
    fd = os.open("closed/file", os.O_RDONLY | os.O_CLOEXEC, dir_fd=root)
    assert os.read(fd, 100) == b"key=[secret:KEY]"
    os.close(fd)


def test_files_that_cannot_be_searched_are_lost_and_their_names_untold(
    root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("artifacts", "upper"):
        os.mkdir(name, dir_fd=root)
    write(root, "artifacts/plain", "plain")
    write(root, f"artifacts/{SECRET.rpartition('/')[2]}", f"key={SECRET}")

    def fails(*_: object) -> None:
        raise PermissionError(13, "Permission denied", SECRET)

    monkeypatch.setattr(masked, "_rewrite", fails)
    directory = RunDirectory(None, None, 0, only_grows=False)
    directory.arrive(os.dup(root))
    harvest = directory.harvest(Limits(), replace(EVERYTHING, masks=masks()))
    os.close(directory.fd)
    assert harvest.artifacts == ()
    assert harvest.changes.kept is False
    assert "could not be searched" in harvest.notes[0]
    assert SECRET not in repr(harvest)
