"""The table of 003 §3: every spelling of a root, on every side. Nothing here ran on Windows."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import InvalidRequest
from ringfence.paths.adapter import AdaptedPath, Roots, Side, adapt, project_paths

WRITTEN = [
    # side, what the setting says, what the system opens, what `docker run -v` takes
    (Side.WINDOWS, "D:\\agents", "D:\\agents", "D:/agents"),
    (Side.WINDOWS, "d:\\agents", "D:\\agents", "D:/agents"),
    (Side.WINDOWS, "D:/agents/work", "D:\\agents\\work", "D:/agents/work"),
    (Side.WINDOWS, "D:\\\\agents\\\\work\\", "D:\\agents\\work", "D:/agents/work"),
    (Side.WINDOWS, "C:\\Users\\A B\\日本", "C:\\Users\\A B\\日本", "C:/Users/A B/日本"),
    (Side.WINDOWS, "C:\\.agents", "C:\\.agents", "C:/.agents"),
    (Side.WSL, "/mnt/d/agents", "/mnt/d/agents", "/mnt/d/agents"),
    (Side.WSL, "/mnt/d//agents/", "/mnt/d/agents", "/mnt/d/agents"),
    (Side.WSL, "/home/a b/日本", "/home/a b/日本", "/home/a b/日本"),
    (Side.LINUX, "/srv/agents", "/srv/agents", "/srv/agents"),
    (Side.LINUX, "/mnt/d", "/mnt/d", "/mnt/d"),
]
REFUSED = [
    # side, what the setting says, what the message names
    (Side.WINDOWS, "/mnt/d/agents", "a path of WSL"),
    (Side.WINDOWS, "/d/agents", "a path of WSL"),
    (Side.WINDOWS, "agents", "does not begin with a drive"),
    (Side.WINDOWS, "D:agents", "does not begin with a drive"),
    (Side.WINDOWS, "\\agents", "does not begin with a drive"),
    (Side.WINDOWS, "\\\\server\\share", "on a share"),
    (Side.WINDOWS, "\\\\wsl.localhost\\Ubuntu\\home", "on a share"),
    (Side.WINDOWS, "\\\\?\\D:\\agents", "on a share or has a prefix"),
    (Side.WINDOWS, "D:\\", "a whole drive"),
    (Side.WINDOWS, "D:\\a\\..\\b", "has '..' in it"),
    (Side.WINDOWS, "D:\\a:stream", "Windows cannot keep"),
    (Side.WINDOWS, "D:\\a.", "Windows cannot keep"),
    (Side.WINDOWS, "D:\\a \\b", "Windows cannot keep"),
    (Side.WINDOWS, "D:\\a\nb", "Windows cannot keep"),
    (Side.WINDOWS, "D:\\nul\\b", "the name of a device"),
    (Side.WINDOWS, "D:\\Com1.txt", "the name of a device"),
    (Side.WSL, "D:\\agents", "a path of Windows"),
    (Side.WSL, "d:/agents", "a path of Windows"),
    (Side.WSL, "\\agents", "a path of Windows"),
    (Side.WSL, "agents", "is not absolute"),
    (Side.WSL, "~/agents", "is not absolute"),
    (Side.WSL, "/", "the whole file system"),
    (Side.WSL, "/mnt/d", "a whole drive"),
    (Side.WSL, "/a/../b", "has '..' in it"),
    (Side.WSL, "/a/b:ro", "has a colon"),
    (Side.WSL, "/a/b\n", "cannot be mounted"),
    (Side.LINUX, "D:\\agents", "a path of Windows"),
]


def root_on(side: Side, written: str) -> AdaptedPath:
    return adapt(side, Roots(**{{"windows": "win"}.get(side.value, side.value): written}))


@pytest.mark.parametrize(("side", "written", "native", "mounted"), WRITTEN)
def test_a_root_is_spelled_for_its_own_system(side: Side, written: str, native: str, mounted: str) -> None:
    assert root_on(side, written) == AdaptedPath(side, native, mounted)


@pytest.mark.parametrize(("side", "written", "named"), REFUSED)
def test_a_root_that_would_mean_something_else_is_refused(side: Side, written: str, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        root_on(side, written)
    assert named in str(refused.value)
    assert refused.value.reason == "invalid_path"
    assert refused.value.fix
    assert str(refused.value).isprintable()


def test_a_missing_root_is_translated_by_whoever_can() -> None:
    asked = []

    def wslpath(path: str, to: Side) -> str:
        asked.append((path, to))
        return {Side.WSL: "/drives/d/agents", Side.WINDOWS: "D:\\agents"}[to]

    on_wsl = adapt(Side.WSL, Roots(win="D:\\agents"), wslpath)
    on_windows = adapt(Side.WINDOWS, Roots(wsl="/drives/d/agents"), wslpath)
    assert (on_wsl.docker_mount_path, on_windows.docker_mount_path) == ("/drives/d/agents", "D:/agents")
    assert asked == [("D:\\agents", Side.WSL), ("/drives/d/agents", Side.WINDOWS)]


def test_what_the_translation_says_is_checked_as_if_somebody_had_written_it() -> None:
    with pytest.raises(InvalidRequest, match="a path of Windows"):
        adapt(Side.WSL, Roots(win="D:\\agents"), lambda path, _: path)


@pytest.mark.parametrize(
    ("side", "roots", "named"),
    [
        (Side.WSL, Roots(), "workspace_root_wsl is not set"),
        (Side.WSL, Roots(win="D:\\agents"), "nothing here translates"),
        (Side.WINDOWS, Roots(), "workspace_root_win is not set"),
        (Side.WINDOWS, Roots(wsl="/mnt/d/agents"), "nothing here translates"),
        (Side.LINUX, Roots(win="D:\\agents"), "workspace_root is not set"),
    ],
)
def test_a_missing_root_is_named_with_what_to_set(side: Side, roots: Roots, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        adapt(side, roots)
    assert (refused.value.reason, "set it, as in" in str(refused.value.fix)) == ("invalid_config", True)


def test_a_project_has_three_directories_and_no_other_is_mounted() -> None:
    paths = project_paths(root_on(Side.WINDOWS, "D:\\agents"), "conv-1")
    assert {name: path.docker_mount_path for name, path in paths.items()} == {
        name: f"D:/agents/workspace/projects/conv-1/{name}" for name in ("inputs", "work", "artifacts")
    }
    assert paths["work"].host_path_native == "D:\\agents\\workspace\\projects\\conv-1\\work"


@pytest.mark.parametrize("project", ["..", ".", "", "a/b", "a\\b", "C:", "nul"])
def test_a_project_cannot_climb_out_of_the_root(project: str) -> None:
    with pytest.raises(InvalidRequest):
        project_paths(root_on(Side.WINDOWS, "D:\\agents"), project)


_written = st.text(alphabet="aD:/\\.mnt d", max_size=12) | st.text(max_size=12)


@given(_written, _written, st.none() | _written)
def test_no_side_is_ever_given_the_spelling_of_the_other(win: str, wsl: str, translated: str | None) -> None:
    for side in (Side.WINDOWS, Side.WSL):
        try:
            path = adapt(side, Roots(win, wsl), lambda _path, _to: translated)
        except InvalidRequest:
            continue
        for shown in (path.host_path_native, path.docker_mount_path):
            if side is Side.WINDOWS:
                assert re.match(r"[A-Z]:", shown)
                assert not shown.startswith("/mnt/")
            else:
                assert shown.startswith("/")
                assert not re.match(r"[A-Za-z]:", shown)
                assert "\\" not in shown
            assert ".." not in re.split(r"[\\/]", shown)
