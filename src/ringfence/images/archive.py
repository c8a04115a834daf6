"""The root file systems that this user has built: where they lie, and that they are still what was built."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path

from ringfence.dataclass import dataclass
from ringfence.errors import Unavailable
from ringfence.images.recipe import Recipe

_MANIFEST = ".json"


@dataclass(frozen=True, slots=True)
class Archive:
    """One built root file system, as its manifest beside it says."""

    path: Path
    recipe_digest: str
    suite: str
    architecture: str
    built_at: int
    """Seconds since 1970."""
    sha256: str
    size: int


def default_cache() -> Path:
    """Return where archives and downloaded packages are kept: they can all be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringfence" / "images"


def context_file(name: str) -> Path:
    """Return a file of the image's build context, which comes with the package."""
    return Path(__file__).parent / "context" / name


def find(recipe: Recipe, cache: Path) -> Archive | None:
    """Return the archive of `recipe`, if it was built and is unchanged since; a damaged one counts as missing."""
    digest = recipe.digest(context_file("entrypoint.sh").read_bytes())
    try:
        archive = _read(cache / f"{name_of(recipe, digest)}{_MANIFEST}")
        return verified(archive)
    except (FileNotFoundError, Unavailable):
        return None


def all_in(cache: Path) -> list[Archive]:
    """Return every archive whose manifest can be read, newest first, without reading the archives themselves."""
    manifests = [path for path in sorted(cache.glob(f"rootfs-*{_MANIFEST}")) if "." not in path.stem]
    found = [_read(path) for path in manifests]
    return sorted(
        (archive for archive in found if archive.path.is_file()), key=lambda each: each.built_at, reverse=True
    )


def bill_of(archive: Archive) -> Path:
    """Return where the bill of materials of an archive is kept."""
    return archive.path.with_suffix(".cdx.json")


def scan_of(archive: Archive) -> Path:
    """Return where the last scan of an archive is kept."""
    return archive.path.with_suffix(".scan.json")


def write_beside(path: Path, document: object) -> None:
    """Put a JSON document there, whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(document, indent=1) + "\n")
    draft.replace(path)


def verified(archive: Archive) -> Archive:
    """Return `archive` after reading all of it.

    Raises:
        Unavailable: It is not what was built: cut short, or changed.
    """
    with archive.path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != archive.sha256:
            raise Unavailable(
                f"{archive.path} is not what was built", reason="damaged", fix="build it again: ringfence image build"
            )
    return archive


def keep(draft: Path, recipe: Recipe, digest: str, *, architecture: str, built_at: int) -> Archive:
    """Make a finished build known: first the archive, then the manifest that says what it must be."""
    with draft.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = os.fstat(file.fileno()).st_size
    path = draft.with_name(f"{name_of(recipe, digest)}.tar")
    draft.replace(path)
    archive = Archive(path, digest, recipe.suite, architecture, built_at, sha256, size)
    write_beside(path.with_suffix(_MANIFEST), {**asdict(archive), "path": path.name})
    return archive


def name_of(recipe: Recipe, digest: str) -> str:
    """Return what the files of one recipe's archive are called, without their endings."""
    return f"rootfs-{recipe.suite}-{digest[:16]}"


def _read(manifest: Path) -> Archive:
    said = json.loads(manifest.read_bytes())
    return Archive(**{**said, "path": manifest.with_name(Path(said["path"]).name)})
