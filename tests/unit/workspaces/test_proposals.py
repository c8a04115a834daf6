"""What a run would change waits, whole and bounded, until it is committed or discarded; others are not overwritten."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringfence.capability.denials import Denials
from ringfence.errors import InvalidRequest, QuotaExceeded, RingfenceError, Unavailable
from ringfence.workspaces import proposals
from ringfence.workspaces.commit import ChangeDenied
from ringfence.workspaces.proposals import Bounds
from ringfence.workspaces.session import SessionWorkspace

BOUNDS = Bounds(max_bytes=10_000, max_inodes=100)
Upper = Callable[..., int]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[SessionWorkspace]:
    with SessionWorkspace.create(tmp_path / "home", "p") as made:
        yield made


@pytest.fixture
def upper(project: SessionWorkspace, tmp_path: Path) -> Upper:
    return upper_for(project, tmp_path)


def upper_for(project: SessionWorkspace, where: Path) -> Upper:
    """Make what a run leaves: files by their content, `None` for a deletion, text for a link."""

    def make(**entries: bytes | str | None) -> int:
        root = Path(tempfile.mkdtemp(dir=where))
        for name, content in entries.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                os.mknod(path, stat.S_IFCHR, 0)
            elif isinstance(content, str):
                path.symlink_to(content)
            else:
                path.write_bytes(content)
        if project.owner:
            for path in (root, *root.rglob("*")):
                os.chown(path, *project.owner, follow_symlinks=False)
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    return make


def tree_of(project: SessionWorkspace) -> dict[str, bytes | str | None]:
    root = Path(f"/proc/self/fd/{project.work_fd}")
    return {
        str(path.relative_to(root)): os.readlink(path)
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in sorted(root.rglob("*"))
    }


def begin(project: SessionWorkspace, upper: Upper, **files: bytes) -> None:
    project.commit(upper(**files), max_bytes=10_000, max_inodes=100)


def propose(project: SessionWorkspace, exec_id: str, upper_fd: int, *, fresh: bool = True) -> None:
    proposals.propose(project, exec_id, upper_fd, BOUNDS, fresh=fresh)


def reason_of(act: Callable[[], object]) -> str:
    with pytest.raises(RingfenceError) as refused:
        act()
    return refused.value.reason


def test_a_proposal_changes_nothing_until_it_is_committed(project: SessionWorkspace, upper: Upper) -> None:
    begin(project, upper, **{"a": b"1\n", "d/b": b"2\n", "d/c": b"3\n"})
    before, generation = tree_of(project), project.generation()
    propose(project, "ex_1", upper(a=b"x\n", new=b"n\n", d=None, link="/etc/passwd"))
    assert (tree_of(project), project.generation()) == (before, generation)
    [waiting] = proposals.waiting(project)
    assert (waiting.exec_id, waiting.complete, waiting.size) == ("ex_1", True, 4)
    assert (waiting.added, waiting.modified) == (("link", "new"), ("a",))
    assert waiting.deleted == ("d/", "d/b", "d/c")
    assert "-1\n+x\n" in waiting.diff
    pending, report = proposals.commit(project, "ex_1", BOUNDS)
    assert (pending, report.written, report.bytes, report.inodes) == (waiting, 3, 15, 3)
    assert tree_of(project) == {"a": b"x\n", "link": "/etc/passwd", "new": b"n\n"}
    assert proposals.waiting(project) == []
    assert os.listdir(project.staging_fd) == []


def test_a_commit_gives_the_same_tree_as_if_it_had_been_kept_at_once(tmp_path: Path) -> None:
    changes: dict[str, bytes | str | None] = {"a": None, "b/c": b"z", "b/d/e": b"y", "f": b"", "g": "b"}
    trees = []
    for later in (False, True):
        with SessionWorkspace.create(tmp_path / f"home-{later}", "p") as project:
            upper = upper_for(project, tmp_path)
            begin(project, upper, a=b"1", **{"b/c": b"2", "f/x": b"3"})
            if later:
                propose(project, "ex_1", upper(**changes))
                proposals.commit(project, "ex_1", BOUNDS)
            else:
                project.commit(upper(**changes), max_bytes=10_000, max_inodes=100)
            trees.append(tree_of(project))
    assert trees[0] == trees[1] == {"b": None, "b/c": b"z", "b/d": None, "b/d/e": b"y", "f": b"", "g": "b"}


@pytest.mark.parametrize(
    "between",
    [{"a": b"theirs"}, {"a": None}, {"d/new": b"theirs"}, {"d": None}, {"added": b"theirs"}, {"d/b": b"other"}],
    ids=["modified", "deleted", "new below a deletion", "deleted too", "added too", "modified below"],
)
def test_what_others_changed_since_is_not_overwritten_unless_that_is_said(
    project: SessionWorkspace, upper: Upper, between: dict[str, bytes | None]
) -> None:
    begin(project, upper, **{"a": b"1", "d/b": b"2"})
    propose(project, "ex_1", upper(a=b"mine", d=None, added=b"mine"))
    project.commit(upper(**between), max_bytes=10_000, max_inodes=100)
    theirs = tree_of(project)
    assert reason_of(lambda: proposals.commit(project, "ex_1", BOUNDS)) == "conflict"
    assert tree_of(project) == theirs
    assert len(proposals.waiting(project)) == 1
    proposals.commit(project, "ex_1", BOUNDS, force=True)
    assert tree_of(project) == {"a": b"mine", "added": b"mine"}


def test_what_others_changed_elsewhere_is_no_conflict(project: SessionWorkspace, upper: Upper) -> None:
    begin(project, upper, **{"a": b"1", "d/b": b"2"})
    propose(project, "ex_1", upper(**{"d/c": b"mine"}))
    project.commit(upper(**{"a": b"theirs", "d/b": b"theirs"}), max_bytes=10_000, max_inodes=100)
    proposals.commit(project, "ex_1", BOUNDS)
    assert tree_of(project) == {"a": b"theirs", "d": None, "d/b": b"theirs", "d/c": b"mine"}


def test_what_was_made_while_others_changed_the_project_is_a_conflict(project: SessionWorkspace, upper: Upper) -> None:
    propose(project, "ex_1", upper(a=b"1"), fresh=False)
    assert reason_of(lambda: proposals.commit(project, "ex_1", BOUNDS)) == "conflict"
    proposals.commit(project, "ex_1", BOUNDS, force=True)
    assert tree_of(project) == {"a": b"1"}


def test_what_is_discarded_is_gone(project: SessionWorkspace, upper: Upper) -> None:
    propose(project, "ex_1", upper(a=b"1"))
    assert proposals.discard(project, "ex_1").added == ("a",)
    assert tree_of(project) == {}
    for act in (lambda: proposals.commit(project, "ex_1", BOUNDS), lambda: proposals.discard(project, "ex_1")):
        assert reason_of(act) == "not_found"


@pytest.mark.parametrize("exec_id", ["", ".", "..", "../p", "/etc", "a/b", "ex_1\0", ".draft", "x" * 300])
def test_what_is_no_name_names_no_proposal(project: SessionWorkspace, exec_id: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no such proposal"):
        proposals.commit(project, exec_id, BOUNDS)
    with pytest.raises(InvalidRequest, match="there is no such proposal"):
        proposals.discard(project, exec_id)


def test_only_so_many_wait_and_the_oldest_give_way(project: SessionWorkspace, upper: Upper) -> None:
    gone: list[str] = []
    for number in range(proposals.MOST_PROPOSALS + 3):
        made = upper(**{f"f{number}": b"1"})
        gone += proposals.propose(project, f"ex_{number}", made, BOUNDS, fresh=True)[1]
        shelf = _shelf_of(project) / f"ex_{number}"
        os.utime(shelf, ns=(0, shelf.stat().st_mtime_ns + number * 1000))
    assert gone == ["ex_0", "ex_1", "ex_2"]
    assert proposals.waiting(project)[0].exec_id == "ex_3"


def test_together_they_hold_no_more_than_the_project_may(project: SessionWorkspace, upper: Upper) -> None:
    propose(project, "ex_1", upper(a=b"x" * 6000))
    _, gone = proposals.propose(project, "ex_2", upper(b=b"x" * 6000), BOUNDS, fresh=True)
    assert gone == ("ex_1",)


def test_one_that_has_grown_old_is_not_there(project: SessionWorkspace, upper: Upper) -> None:
    propose(project, "ex_1", upper(a=b"1"))
    shelf = _shelf_of(project) / "ex_1"
    os.utime(shelf, ns=(0, shelf.stat().st_mtime_ns - (proposals.MOST_AGE_MS + 1000) * 1_000_000))
    assert reason_of(lambda: proposals.commit(project, "ex_1", BOUNDS)) == "not_found"
    assert proposals.waiting(project) == []
    assert not shelf.exists()


def _shelf_of(project: SessionWorkspace) -> Path:
    fd = project.open_beside("proposals")
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)


def test_one_over_quota_is_not_kept_and_one_that_became_so_is_not_applied(
    project: SessionWorkspace, upper: Upper
) -> None:
    with pytest.raises(QuotaExceeded):
        propose(project, "ex_1", upper(a=b"x" * 20_000))
    assert proposals.waiting(project) == []
    propose(project, "ex_2", upper(a=b"x" * 6000))
    begin(project, upper, b=b"x" * 6000)
    with pytest.raises(QuotaExceeded):
        proposals.commit(project, "ex_2", BOUNDS)
    assert tree_of(project) == {"b": b"x" * 6000}


def test_what_may_not_be_changed_is_refused_when_proposed_and_when_committed(
    project: SessionWorkspace, upper: Upper
) -> None:
    strict = Bounds(10_000, 100, Denials(changes=frozenset({".git/**"})))
    made = upper(**{".git/config": b"x", "a": b"1"})
    for act in (proposals.look, lambda *given: proposals.propose(*given, fresh=True)):
        with pytest.raises(ChangeDenied) as refused:
            act(project, "ex_1", made, strict)
        assert refused.value.paths == (".git", ".git/config")
    propose(project, "ex_1", made)
    with pytest.raises(ChangeDenied):
        proposals.commit(project, "ex_1", strict, force=True)
    assert tree_of(project) == {}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"form": 2}', b"[" * 100_000], ids=["empty", "bare", "newer", "deep"]
)
def test_a_damaged_one_is_not_applied(project: SessionWorkspace, upper: Upper, content: bytes) -> None:
    propose(project, "ex_1", upper(a=b"1"))
    (_shelf_of(project) / "ex_1/proposal.json").write_bytes(content)
    with pytest.raises(Unavailable):
        proposals.commit(project, "ex_1", BOUNDS)
    assert tree_of(project) == {}
    assert proposals.waiting(project) == []


def test_what_was_only_opened_for_writing_is_not_shown_and_still_guarded(
    project: SessionWorkspace, upper: Upper
) -> None:
    begin(project, upper, a=b"same", b=b"1")
    propose(project, "ex_1", upper(a=b"same", b=b"2"))
    assert proposals.waiting(project)[0].modified == ("b",)
    project.commit(upper(a=b"theirs"), max_bytes=10_000, max_inodes=100)
    assert reason_of(lambda: proposals.commit(project, "ex_1", BOUNDS)) == "conflict"


def test_looking_keeps_nothing(project: SessionWorkspace, upper: Upper) -> None:
    pending = proposals.look(project, "ex_1", upper(a=b"1"), BOUNDS)
    assert (pending.added, pending.expires_at_ms) == (("a",), None)
    assert proposals.waiting(project) == []
    assert tree_of(project) == {}
