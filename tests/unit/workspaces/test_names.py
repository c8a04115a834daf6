from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest, PathTraversalError
from ringfence.workspaces.names import check_input_path, harmless, locate, original

guest_names = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name)


@given(guest_names)
def test_a_guest_name_is_printable_and_can_be_had_back(name: bytes) -> None:
    shown = harmless(name)
    assert shown.isprintable()
    assert not set(shown) & {"/", "\\", "\n", "\x1b"}
    assert shown not in (".", "..")
    assert original(shown) == name


@given(guest_names, guest_names)
def test_two_guest_names_never_look_the_same(one: bytes, other: bytes) -> None:
    assert (harmless(one) == harmless(other)) == (one == other)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain name.txt", "plain name.txt"),
        ("größe-数据.csv".encode(), "größe-数据.csv"),
        (b"..", "%2E%2E"),
        (b"a\nb", "a%0Ab"),
        (b"\x1b[31mred", "%1B[31mred"),
        (b"\xff\xfe", "%FF%FE"),
        ("gpj\u202eexe".encode(), "gpj%E2%80%AEexe"),
        (b"100%", "100%25"),
        (b"a\\b", "a%5Cb"),
    ],
)
def test_hostile_names_become_these(raw: bytes, shown: str) -> None:
    assert harmless(raw) == shown


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a", "a"),
        ("./a", "a"),
        ("a//b/./c", "a/b/c"),
        ("-rf", "-rf"),
        ("...", "..."),
        ("/workspace/work/a/b", "a/b"),
    ],
)
def test_an_input_path_is_read_as_the_plain_path_it_means(name: str, path: str) -> None:
    assert check_input_path(name) == PurePosixPath(path)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../a",
        "a/../b",
        "a/..",
        "//a",
        "/workspace/inputs/a",
        "/workspace/work//a",
        "/workspace/work/../inputs/a",
        "/workspace/workx/a",
    ],
)
def test_an_input_path_that_leads_elsewhere_is_traversal(name: str) -> None:
    with pytest.raises(PathTraversalError):
        check_input_path(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "./",
        "a/",
        "a/.",
        "/workspace/work/",
        "a\0b",
        "a\nb",
        "\x1b[2J",
        "a\u2028",
        "\udcff",
        "x" * 256,
        "é" * 128,
        "/".join("a" * 33),
        "/".join(["y" * 200] * 6),
    ],
)
def test_an_input_path_that_names_no_file_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_input_path(name)
    assert refused.value.reason == "invalid_path"


def test_the_virtual_form_follows_the_place_the_files_go_to() -> None:
    assert check_input_path("/workspace/inputs/a", under="inputs") == PurePosixPath("a")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("work/a", ("work", "a")),
        ("./work//a/.", ("work", "a")),
        ("/workspace/work/a", ("work", "a")),
        ("/workspace", ()),
        ("", ()),
        ("code/a", ("work", "a")),
        ("/workspace/data", ("work",)),
        ("/workspace/output/a", ("artifacts", "a")),
        ("/output/a", ("artifacts", "a")),
        ("workspace/a", ("workspace", "a")),
    ],
)
def test_a_path_is_located_below_the_workspace(name: str, parts: tuple[str, ...]) -> None:
    assert locate(name) == parts


def test_a_relative_path_can_start_at_the_work_directory() -> None:
    assert locate("output/a", base="work") == ("work", "output", "a")
    assert locate("/workspace/output/a", base="work") == ("artifacts", "a")
    assert locate("", base="work") == ("work",)


@given(st.text(st.sampled_from("aw./\\\n\0wok%é"), max_size=30) | st.text(max_size=30))
def test_a_located_path_never_climbs_and_locates_to_itself(name: str) -> None:
    try:
        parts = locate(name)
    except InvalidRequest:
        return
    assert not {"", ".", ".."} & set(parts)
    assert not any("/" in part or "\0" in part for part in parts)
    assert locate("/".join(("/workspace", *parts))) == parts
