"""Where AIO's paths lie, and how refusals are told in AIO's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import (
    CapabilityBlocked,
    Denied,
    InvalidRequest,
    PathTraversalError,
    QuotaExceeded,
    RingfenceError,
    Unavailable,
)
from ringfence.operation.path import is_beneath
from ringfence.service.aio.failure import failure_fields, is_expected
from ringfence.service.aio.paths import guest_directory, guest_path


@pytest.mark.parametrize(
    ("given_path", "found"),
    [
        ("a.txt", "/workspace/work/a.txt"),
        ("work/a.txt", "/workspace/work/work/a.txt"),
        ("/workspace", "/workspace/work"),
        ("/workspace/", "/workspace/work"),
        ("/workspace/work", "/workspace/work"),
        ("/workspace/a/b", "/workspace/work/a/b"),
        ("/workspace/code/a", "/workspace/work/a"),
        ("/workspace/data/a", "/workspace/work/a"),
        ("/workspace/output/a", "/workspace/artifacts/a"),
        ("/output/a", "/workspace/artifacts/a"),
        ("/workspace/inputs/a", "/workspace/inputs/a"),
        ("/workspace/workbench/a", "/workspace/work/workbench/a"),
        ("//workspace//work/./a", "/workspace/work/a"),
    ],
)
def test_a_path_has_one_place(given_path: str, found: str) -> None:
    assert guest_path(given_path) == found
    assert guest_path(found) == found


@pytest.mark.parametrize("outside", ["/", "/etc", "/workspaces/a", "..", "/workspace/..", "a/../..", "/home/gem/a"])
def test_what_lies_elsewhere_is_refused(outside: str) -> None:
    with pytest.raises(PathTraversalError):
        guest_path(outside)


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", "workspace", "work", "a", "", "."])).map("/".join))
def test_whatever_is_written_lies_in_the_workspace_or_nowhere(path: str) -> None:
    for spelled in (path, f"/{path}", f"/workspace/{path}"):
        try:
            found = guest_path(spelled)
        except InvalidRequest:
            continue
        assert is_beneath(found, "/workspace")
        assert ".." not in found.split("/")
        assert guest_path(found) == found


def test_no_directory_is_the_usual_one() -> None:
    assert guest_directory(None) == guest_directory("") == "/workspace/work"


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (InvalidRequest("x", reason="not_found"), "not_found", "ENOENT"),
        (InvalidRequest("x", reason="is_a_directory"), "invalid_target", "EISDIR"),
        (PathTraversalError("x"), "permission_denied", "EACCES"),
        (PathTraversalError("x").at_runtime(), "permission_denied", "EACCES"),
        (CapabilityBlocked("x", reason="read_only"), "read_only_filesystem", "EROFS"),
        (Denied("x"), "permission_denied", "EACCES"),
        (QuotaExceeded("x", reason="workspace_disk"), "no_space_left", "ENOSPC"),
        (InvalidRequest("x", reason="invalid_text"), "decode_error", "EILSEQ"),
        (InvalidRequest("x"), "invalid_request", "EINVAL"),
    ],
)
def test_a_refusal_is_told_in_documented_words(error: RingfenceError, kind: str, name: str) -> None:
    assert is_expected(error)
    told = failure_fields(error, "read", "/workspace/work/x")
    assert (told["error_type"], told["errno_name"], told["operation"]) == (kind, name, "read")
    assert (told["code"], told["reason"], told["path"]) == (error.code, error.reason, "/workspace/work/x")


@pytest.mark.parametrize(
    "error", [QuotaExceeded("x", reason="concurrency"), Unavailable("x"), Denied("x", reason="no_key")]
)
def test_what_is_no_fault_of_the_operation_keeps_its_status(error: RingfenceError) -> None:
    assert not is_expected(error)
