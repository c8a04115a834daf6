"""What of a git directory is copied for a guest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.workspaces.git_directory import Place, configuration, goes_along, leads_inside, place_of

KEPT = {b"repositoryformatversion", b"worktree", b"filemode", b"bare", b"logallrefupdates"}
EXTENSIONS = {b"objectformat", b"compatobjectformat", b"refstorage"}
WORDS = st.sampled_from(
    [
        *(b"[core]", b'[remote "origin"]', b"[include]", b"[extensions]", b'[core "sub"]', b"; c", b"", b"\\"),
        *(b"path = /x", b"\turl = https://u:p@h/", b"hooksPath = /x", b"fsmonitor = /x \\", b"sshCommand = !sh"),
        *(b"repositoryformatversion = 1", b"worktree = ../../a", b"worktree = /a", b"objectformat = sha256"),
    ]
)


@given(st.lists(WORDS | st.binary(max_size=40), max_size=20))
def test_whatever_a_configuration_says_only_known_harmless_lines_are_left(lines: list[bytes]) -> None:
    section = b""
    for line in configuration(b"\n".join(lines)).splitlines():
        if line.startswith(b"["):
            section = line
            assert section in (b"[core]", b"[extensions]")
            continue
        key, _, value = line.strip().partition(b" = ")
        assert key in (KEPT if section == b"[core]" else EXTENSIONS)
        assert not value.startswith(b"/")
        assert value.replace(b".", b"").replace(b"/", b"").replace(b"_", b"").replace(b"-", b"").isalnum()


@pytest.mark.parametrize(
    ("link", "directory", "inside"),
    [
        (b"gitdir: ../../.git/modules/a\n", b"vendor/a", True),
        (b"gitdir: .git/modules/a", b"", True),
        (b"gitdir: ../../../.git/modules/a", b"vendor/a", False),
        (b"gitdir: /srv/app/.git/worktrees/b", b"", False),
        (b"gitdir: ..", b"a", False),
        (b"gitdir:", b"", False),
        (b"gitdir: a\nb", b"", False),
        (b"ref: refs/heads/main", b"", False),
    ],
)
def test_a_file_that_stands_for_a_git_directory_may_not_lead_out(
    link: bytes, directory: bytes, *, inside: bool
) -> None:
    assert leads_inside(link, directory) is inside


def test_hooks_are_left_out_where_git_runs_them_and_nowhere_else() -> None:
    bare = frozenset({b"HEAD", b"objects", b"refs", b"hooks"})
    assert place_of(b".git", Place.PLAIN, bare) is Place.GIT
    assert place_of(b"a", place_of(b"modules", Place.GIT, frozenset()), bare) is Place.GIT
    assert place_of(b"refs", Place.GIT, frozenset({b"hooks"})) is Place.INSIDE
    assert [place for place in Place if not goes_along(b"hooks", place)] == [Place.GIT]
    assert not goes_along(b"index.lock", Place.GIT)
