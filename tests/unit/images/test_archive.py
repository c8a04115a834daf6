"""Archives are found by their recipe, read whole before they are used, and never half there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import Unavailable
from ringfence.images import archive as archives
from ringfence.images.age import age_in_days
from ringfence.images.archive import Archive
from ringfence.images.recipe import Recipe

RECIPE = Recipe()


def kept(cache: Path, content: bytes = b"root file system", built_at: int = 1000, recipe: Recipe = RECIPE) -> Archive:
    draft = cache / "draft"
    draft.write_bytes(content)
    digest = recipe.digest(archives.context_file("entrypoint.sh").read_bytes())
    return archives.keep(draft, recipe, digest, architecture="x86_64", built_at=built_at)


def test_what_was_kept_is_found_by_its_recipe(tmp_path: Path) -> None:
    made = kept(tmp_path)
    assert archives.find(RECIPE, tmp_path) == made
    assert archives.find(Recipe("trixie"), tmp_path) is None
    assert made.path.read_bytes() == b"root file system"


@pytest.mark.parametrize("damage", [b"", b"root file systen", b"root file system\0"])
def test_an_archive_that_is_not_what_was_built_is_not_used(tmp_path: Path, damage: bytes) -> None:
    made = kept(tmp_path)
    made.path.write_bytes(damage)
    assert archives.find(RECIPE, tmp_path) is None
    with pytest.raises(Unavailable) as refused:
        archives.verified(made)
    assert (refused.value.reason, refused.value.fix) == ("damaged", "build it again: ringfence image build")


def test_a_manifest_without_its_archive_is_none(tmp_path: Path) -> None:
    kept(tmp_path).path.unlink()
    assert archives.find(RECIPE, tmp_path) is None
    assert archives.all_in(tmp_path) == []


def test_a_manifest_names_no_file_outside_the_cache(tmp_path: Path) -> None:
    made = kept(tmp_path)
    manifest = made.path.with_suffix(".json")
    manifest.write_text(manifest.read_text().replace(made.path.name, f"../../{made.path.name}"))
    assert archives.find(RECIPE, tmp_path) == made


def test_archives_are_listed_newest_first_without_what_lies_beside_them(tmp_path: Path) -> None:
    older, newer = kept(tmp_path, built_at=1), kept(tmp_path, built_at=2, recipe=Recipe("trixie"))
    archives.write_beside(archives.bill_of(older), {})
    archives.write_beside(archives.scan_of(newer), {})
    assert archives.all_in(tmp_path) == [newer, older]


def test_age_is_counted_in_whole_days_and_never_below_none(tmp_path: Path) -> None:
    made = kept(tmp_path, built_at=1_000_000)
    assert [age_in_days(made, 1_000_000 + seconds) for seconds in (-5, 0, 86_399, 86_400, 31 * 86_400)] == [
        0,
        0,
        0,
        1,
        31,
    ]


def test_the_cache_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archives.default_cache() == tmp_path / "ringfence" / "images"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert archives.default_cache() == Path("/home/somebody/.cache/ringfence/images")
