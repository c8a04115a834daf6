from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest, PathTraversalError, Unavailable
from ringfence.interfaces.cli.keep import ArtifactDirectory
from ringfence.outcome import Artifact


def artifact(path: str, content: bytes = b"x") -> Artifact:
    return Artifact(path=path, size=len(content), sha256="", content=content)


def keep(directory: Path, *artifacts: Artifact) -> None:
    opened = ArtifactDirectory(str(directory))
    try:
        opened.keep(artifacts)
    finally:
        opened.close()


def test_artifacts_are_written_below_a_directory_that_is_made(tmp_path: Path) -> None:
    keep(tmp_path / "new" / "out", artifact("a.txt", b"1"), artifact("deep/er/b.bin", b"\0"), artifact("deep/c", b""))
    out = tmp_path / "new" / "out"
    written = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert written == {"a.txt": b"1", "deep/er/b.bin": b"\0", "deep/c": b""}


def test_a_directory_that_holds_something_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"mine")
    with pytest.raises(InvalidRequest) as caught:
        ArtifactDirectory(str(tmp_path))
    assert caught.value.reason == "artifacts_not_empty"


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidRequest):
        ArtifactDirectory(str(tmp_path / "file"))


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".", "a//b", "a/\0b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(PathTraversalError):
        keep(tmp_path / "out", artifact(path))
    assert not (tmp_path / "x").exists()


def test_a_link_planted_during_the_run_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    out = ArtifactDirectory(str(tmp_path / "out"))
    (tmp_path / "out" / "deep").symlink_to(outside)
    with pytest.raises(Unavailable):
        out.keep([artifact("deep/file")])
    out.close()
    assert list(outside.iterdir()) == []


def test_a_file_planted_during_the_run_is_not_overwritten(tmp_path: Path) -> None:
    out = ArtifactDirectory(str(tmp_path / "out"))
    (tmp_path / "out" / "file").write_bytes(b"mine")
    with pytest.raises(Unavailable) as refused:
        out.keep([artifact("file", b"theirs")])
    assert refused.value.reason == "artifacts_not_written"
    out.close()
    assert (tmp_path / "out" / "file").read_bytes() == b"mine"
