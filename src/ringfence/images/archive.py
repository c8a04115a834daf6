"""The archives of root file systems that this user has built: where they lie, and that they are still what was built."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

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
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given if given else Path.home() / ".cache") / "ringfence" / "images"


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
    found = [_read(path) for path in sorted(cache.glob(f"rootfs-*{_MANIFEST}"))]
    return sorted(
        (archive for archive in found if archive.path.is_file()), key=lambda each: each.built_at, reverse=True
    )


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
    written = path.with_suffix(".draft")
    written.write_text(json.dumps({**asdict(archive), "path": path.name}, indent=1) + "\n")
    written.replace(path.with_suffix(_MANIFEST))
    return archive


def name_of(recipe: Recipe, digest: str) -> str:
    """Return what the files of one recipe's archive are called, without their endings."""
    return f"rootfs-{recipe.suite}-{digest[:16]}"


def _read(manifest: Path) -> Archive:
    said = json.loads(manifest.read_bytes())
    return Archive(**{**said, "path": manifest.with_name(Path(said["path"]).name)})
