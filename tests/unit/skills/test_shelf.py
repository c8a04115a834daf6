"""Directories of skills: what is there is listed, what is wrong is named, and an id is one skill's or nobody's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.skills.example import put

from ringfence.errors import InvalidRequest
from ringfence.skills import shelf as shelves
from ringfence.skills.shelf import Shelf, make, read_directory


def shelf(*directories: Path) -> Shelf:
    return Shelf(directories, shipped=False)


def test_skills_of_several_directories_are_listed_by_id(tmp_path: Path) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b", id="a.first")
    (tmp_path / "a" / "_template").mkdir()
    (tmp_path / "a" / "README.md").write_text("about")
    found = shelf(tmp_path / "a", tmp_path / "b").read()
    assert (list(found.skills), found.findings) == (["a.first", "add.one"], ())


def test_the_home_has_skills_when_it_has_the_directory(tmp_path: Path) -> None:
    assert list(Shelf((), home=tmp_path, shipped=False).read().skills) == []
    put(tmp_path / "skills")
    assert list(Shelf((), home=tmp_path, shipped=False).read().skills) == ["add.one"]


def test_the_same_skill_stays_the_same_object_and_a_changed_one_is_another(tmp_path: Path) -> None:
    directory = put(tmp_path)
    found = shelf(tmp_path)
    before = found.find("add.one")
    assert found.find("add.one") is before
    (directory / "main.py").write_bytes(b"print(1)\n")
    after = found.find("add.one")
    assert after is not before
    assert after.files == {"main.py": b"print(1)\n"}


def test_an_id_that_is_there_twice_is_nobodys(tmp_path: Path) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b")
    both = shelf(tmp_path / "a", tmp_path / "b")
    found = both.read()
    assert list(found.skills) == []
    assert [finding.rule for finding in found.findings] == ["duplicate_skill"]
    with pytest.raises(InvalidRequest) as refused:
        both.find("add.one")
    assert refused.value.reason == "duplicate_skill"
    assert str(tmp_path) not in str(refused.value)


def test_a_shipped_skill_cannot_be_replaced(tmp_path: Path) -> None:
    put(tmp_path, id="shell.run")
    with pytest.raises(InvalidRequest) as refused:
        Shelf((tmp_path,)).find("shell.run")
    assert refused.value.reason == "duplicate_skill"


def test_a_broken_skill_is_named_and_keeps_no_other_from_being_called(tmp_path: Path) -> None:
    put(tmp_path)
    (put(tmp_path, id="no.json") / "manifest.json").write_text("{")
    put(tmp_path, id="is.wrong", runtime__kind="process")
    (tmp_path / "is.empty").mkdir()
    put(tmp_path, id="right.id").rename(tmp_path / "wrong.name")
    found = shelf(tmp_path).read()
    assert list(found.skills) == ["add.one"]
    assert {Path(finding.file).parent.name for finding in found.findings} == {
        "no.json",
        "is.wrong",
        "is.empty",
        "wrong.name",
    }
    assert all(finding.message for finding in found.findings)
    with pytest.raises(InvalidRequest) as refused:
        shelf(tmp_path).find("is.wrong")
    assert (refused.value.reason, refused.value.details["path"]) == ("invalid_manifest", "runtime.kind")
    assert str(tmp_path) not in str(refused.value.details)


@pytest.mark.parametrize(
    "name", ["no.such", "", "..", "../add.one", "add.one/", "add.one\n", "ADD.ONE", 5, None, "a" * 5000]
)
def test_what_is_not_there_is_always_answered_alike(tmp_path: Path, name: object) -> None:
    put(tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        shelf(tmp_path).find(name)
    assert (str(refused.value), refused.value.reason, refused.value.details) == (
        "there is no such skill",
        "not_found",
        {},
    )
    assert name not in shelf(tmp_path)


def test_a_directory_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        shelf(tmp_path / "none").read()
    assert refused.value.reason == "unreadable"


def test_there_is_a_bound_on_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelves, "MAX_FILES", 3)
    monkeypatch.setattr(shelves, "MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(shelves, "MAX_DEPTH", 2)
    put(tmp_path, {"main.py": b"", "a": b"", "b": b"", "c": b"", "d": b""}, id="too.many")
    put(tmp_path, {"main.py": b"x" * 1001}, id="too.large")
    put(tmp_path, {"main.py": b"", "a/b/c/d": b""}, id="too.deep")
    found = shelf(tmp_path).read()
    assert found.skills == {}
    assert sorted(finding.message.split(":")[0] for finding in found.findings) == [
        "'main.py' is too large", "it has more than 3 files", "its directories are more than 2 deep",
    ]  # fmt: skip


def test_a_skill_made_from_the_template_is_a_skill(tmp_path: Path) -> None:
    assert make("word.count", tmp_path) == tmp_path / "word.count"
    assert list(shelf(tmp_path).read().skills) == ["word.count"]
    with pytest.raises(InvalidRequest) as refused:
        make("word.count", tmp_path)
    assert refused.value.reason == "exists"
    with pytest.raises(InvalidRequest):
        make("../x", tmp_path)


def test_what_the_interpreter_leaves_behind_is_no_part_of_a_skill(tmp_path: Path) -> None:
    directory = put(tmp_path)
    (directory / "__pycache__").mkdir()
    (directory / "__pycache__" / "main.pyc").write_bytes(b"x")
    manifest, files = read_directory(tmp_path, "add.one")
    assert (json.loads(manifest)["id"], list(files)) == ("add.one", ["main.py"])
