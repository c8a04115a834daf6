"""What a policy says about changes: deny lists add up, the strictest word counts, and both are shown and compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.authority.layers import Request, read_overrides
from ringfence.authority.levels import Commit
from ringfence.authority.local import LocalAuthority
from ringfence.authority.policy import PolicySnapshot
from ringfence.authority.policy_diff import Direction, diff
from ringfence.authority.policy_lint import lint
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.profile import Profile
from ringfence.authority.request_form import request_from_json, request_to_json
from ringfence.capability.denials import Denials, read_denials
from ringfence.capability.glob import change_glob
from ringfence.errors import InvalidRequest
from ringfence.evidence.replay import as_the_policy_gives
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import FsDelete, FsMkdir, FsRead, FsWrite
from ringfence.operation.workspace import WsDiff, WsReset
from ringfence.operation.workspace_proposals import WsCommit

POLICY = b"""
policies:
  default: {denied_changes: ['.git/**']}
  tools:
    code_run: {denied_changes: ['**/*.lock'], commit: ask}
  agent_roles:
    reader: {tools: [code_run], denied_changes: [/workspace/work/docs], commit: never}
"""
RUN = CodeRun(Language.PYTHON, "1")


def profile(policy: PolicySnapshot, role: str | None = None, **request: Commit) -> Profile:
    authority = LocalAuthority(lambda: policy, as_the_policy_gives)
    return authority.profile(RUN, call_id="c", role=role, request=Request(**request))  # type: ignore[arg-type]


def loaded(text: bytes = POLICY) -> PolicySnapshot:
    return load_policy(text, "policy.yaml")


def test_deny_lists_add_up_from_every_place() -> None:
    globs = {"/workspace/work/.git/**", "/workspace/work/**/*.lock"}
    assert profile(loaded()).denials.changes == globs
    assert profile(loaded(), "reader").denials.changes == globs | {"/workspace/work/docs"}


@given(st.sampled_from(Commit), st.sampled_from([None, "reader"]))
def test_the_strictest_word_counts(asked: Commit, role: str | None) -> None:
    stated = Commit.NEVER if role else Commit.ASK
    assert profile(loaded(), role, commit=asked).commit is max(stated, asked)


def test_a_profile_that_nobody_asks_anything_about_keeps_its_hash() -> None:
    bare = loaded(b"policies: {}\n")
    assert "commit" not in profile(bare).normal_form()
    assert profile(bare, commit=Commit.ASK).normal_form()["commit"] == "ask"
    assert profile(bare).profile_hash != profile(bare, commit=Commit.ASK).profile_hash


@given(st.sampled_from(Commit))
def test_a_request_that_asks_comes_back_from_its_document(commit: Commit) -> None:
    request = Request(commit=commit)
    assert request_from_json(request_to_json(request)) == request
    assert read_overrides({"commit": commit.value}).commit is commit


def test_less_strict_is_wider_and_so_is_a_shorter_list() -> None:
    bare = loaded(b"policies: {tools: {code_run: {commit: always}}}\n")
    found = {(change.tool, change.setting): change.direction for change in diff(loaded(), bare) if change.role is None}
    assert found["code_run", "commit"] is Direction.WIDENED
    assert found["code_run", "denied_changes"] is Direction.WIDENED
    assert found["file_read", "denied_changes"] is Direction.WIDENED


def test_a_role_that_asks_less_than_its_tool_is_warned_about() -> None:
    text = b"policies: {tools: {code_run: {commit: ask}}, agent_roles: {r: {tools: [code_run], commit: always}}}\n"
    assert [finding.rule for finding in lint(text)] == ["role_widens_tool"]


@pytest.mark.parametrize(
    "glob", ["", "/etc/passwd", "/workspace/inputs/x", "../x", "/workspace/work", "a/**b", "[a]*", 1]
)
def test_what_is_no_glob_below_the_work_directory_is_an_error(glob: object) -> None:
    with pytest.raises(InvalidRequest):
        change_glob(glob)


def test_a_glob_has_one_spelling_and_the_list_comes_back_from_json() -> None:
    assert change_glob(".git/**") == change_glob("/workspace/work/.git/**") == change_glob("/workspace/code//.git/./**")
    denials = Denials(changes=frozenset({".git/**", "a b/*"}))
    assert read_denials(denials.to_json()) == denials
    assert denials.meet(denials) == denials


@pytest.mark.parametrize(
    ("path", "is_denied"),
    [
        (".git", True), (".git/config", True), (".GIT/Config", True), (".git/a/b/c", True), (".gitignore", False),
        ("x/.git/config", False), ("Cargo.lock", True), ("a/b/c.lock", True), ("c.lock/inside", True), ("lock", False),
    ],
)  # fmt: skip
def test_a_path_is_denied_with_everything_below_it(path: str, is_denied: bool) -> None:
    denials = Denials(changes=frozenset({".git/**", "**/*.lock"}))
    assert denials.denied_changes([path]) == ((path,) if is_denied else ())
    for kind in (FsWrite, FsMkdir, FsDelete):
        assert denials.refusal(kind(f"work/{path}")) == ("denied_change" if is_denied else None)
    assert denials.refusal(FsRead(f"work/{path}")) is None


def test_what_changes_many_files_is_looked_at_path_by_path_when_it_is_applied() -> None:
    denials = Denials(changes=frozenset({".git/**"}), paths=frozenset({"**/*.key"}))
    for operation in (WsReset(), WsDiff(), WsCommit("ex_1")):
        assert denials.refusal(operation) is None
    assert denials.denied_writes(["a", ".git/config", "d/b.key", "c\n.KEY"]) == (".git/config", "d/b.key", "c\n.KEY")
    assert denials.denied_changes(["a", ".git/config", "d/b.key"]) == (".git/config",)


# --- how much a run may change ---

AMOUNTS = b"""
policies:
  default: {max_changed_paths: 100}
  tools:
    code_run: {max_changed_bytes: 1mb}
  agent_roles:
    careful: {tools: [code_run], max_changed_paths: 5}
"""


def test_how_much_a_run_may_change_is_a_limit_like_every_other() -> None:
    limits = profile(loaded(AMOUNTS)).limits
    assert (limits.changed_paths, limits.changed_bytes) == (100, 1024 * 1024)
    assert profile(loaded(AMOUNTS), "careful").limits.changed_paths == 5
    asked = read_overrides({"max_changed_paths": 3, "max_changed_bytes": 10}).limits
    assert asked == {"changed_paths": 3, "changed_bytes": 10}


def test_a_profile_that_bounds_no_change_keeps_the_hash_it_had() -> None:
    bare = profile(loaded(b"policies: {}\n")).normal_form()["limits"]
    assert not {"changed_paths", "changed_bytes"} & bare.keys()
    assert profile(loaded(AMOUNTS)).normal_form()["limits"].keys() - bare.keys() == {"changed_paths", "changed_bytes"}


def test_a_higher_bound_is_wider_and_a_wrong_one_is_an_error() -> None:
    found = {change.setting: change.direction for change in diff(loaded(AMOUNTS), loaded(b"policies: {}\n"))}
    assert found["max_changed_paths"] is found["max_changed_bytes"] is Direction.WIDENED
    for wrong in (
        b"max_changed_paths: 0",
        b"max_changed_paths: many",
        b"max_changed_bytes: -1",
        b"max_changed_path: 1",
    ):
        assert lint(b"policies: {default: {" + wrong + b"}}\n")
