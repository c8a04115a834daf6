"""An image is unpacked by root: whatever its archive says, and whoever put it there, nothing lands outside."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from ringfence.errors import Unavailable
from ringfence.images import archive as archives
from ringfence.images.archive import Archive
from ringfence.images.recipe import Recipe
from ringfence.isolation.gvisor.rootfs import Rootfs, hold, unpack, unpacked


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def file(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = 4, 0o644
    return info


def built(cache: Path, *members: tarfile.TarInfo) -> Archive:
    draft = cache / "draft.tar"
    with tarfile.open(draft, "w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"evil"))
    return archives.keep(draft, Recipe(), "0" * 64, architecture="x86_64", built_at=int(time.time()))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    made = tmp_path / "outside"
    made.mkdir()
    (made / "file").write_text("ours")
    return made


def test_a_link_of_an_image_leads_no_file_out_of_it(cache: Path, outside: Path) -> None:
    for members in (
        (link("etc", str(outside)), file("etc/file")),
        (link("name", str(outside / "file")), file("name")),
        (link("up", "../.."), file("up/outside/file")),
        (link("etc", str(outside)), link("copy", "etc/file", tarfile.LNKTYPE)),
        (link("workspace", str(outside)),),
        (file("a/../../outside/file"),),
    ):
        with pytest.raises(Unavailable, match="outside of it"):
            unpack(built(cache, *members))
        assert [path.name for path in outside.iterdir()] == ["file"]
        assert (outside / "file").read_text() == "ours"


def test_the_links_that_images_have_are_unpacked(cache: Path) -> None:
    usr = tarfile.TarInfo("usr/bin")
    usr.type = tarfile.DIRTYPE
    made = built(cache, usr, link("bin", "usr/bin"), file("bin/sh"), link("usr/bin/vi", "/etc/alternatives/vi"))
    rootfs = unpack(made).path
    assert (rootfs / "usr" / "bin" / "sh").read_text() == "evil"
    assert (rootfs / "usr" / "bin" / "vi").is_symlink()


def test_a_link_where_something_is_mounted_gives_way_to_a_directory(cache: Path, outside: Path) -> None:
    rootfs = unpack(built(cache, link("tmp", "/var/tmp"), link("mnt", str(outside)))).path
    assert all((rootfs / name).is_dir() and not (rootfs / name).is_symlink() for name in ("tmp", "mnt"))
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.mark.parametrize("has", [(), (link("var/tmp", "/tmp"),)])
def test_the_other_temporary_directory_is_the_same_one(cache: Path, has: tuple[tarfile.TarInfo, ...]) -> None:
    rootfs = unpack(built(cache, *has, file("sh"))).path
    assert str((rootfs / "var/tmp").readlink()) == "/tmp"


def test_a_guest_finds_its_own_machine_by_name(cache: Path) -> None:
    etc = tarfile.TarInfo("etc")
    etc.type, etc.mode = tarfile.DIRTYPE, 0o755
    assert "127.0.0.1 localhost" in (unpack(built(cache, etc)).path / "etc/hosts").read_text()


def test_of_images_that_nobody_holds_the_oldest_go(cache: Path) -> None:
    def unpack_another(number: int) -> Rootfs:
        return unpack(built(cache, file(f"sh{number}")))

    held_one = unpack_another(0)
    holding = hold(held_one)
    try:
        (cache / ".unpacking-left-by-somebody-killed").mkdir()
        others = [unpack_another(number) for number in range(1, 5)]
        left = {path.name for path in cache.iterdir() if path.is_dir()}
        # the one just made, the one used last before it, and the one that boxes are made from
        assert left == {each.path.name for each in (held_one, *others[-2:])}
    finally:
        os.close(holding)
    newest = unpack_another(5)
    assert {path.name for path in cache.iterdir() if path.is_dir()} < {newest.path.name, *left}
    assert not held_one.path.exists()
    with pytest.raises(FileNotFoundError):
        hold(held_one)


def test_an_image_that_somebody_else_could_have_put_there_is_not_used(cache: Path) -> None:
    built(cache, file("sh"))
    assert unpacked(cache).digest.startswith("sha256:")
    cache.chmod(0o777)
    with pytest.raises(Unavailable):
        unpacked(cache)
