from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli import take
from ringfence.interfaces.cli.take import take_code, take_inputs


def test_a_directory_is_taken_with_everything_in_it(tmp_path: Path) -> None:
    tree = tmp_path / "data"
    (tree / "deep").mkdir(parents=True)
    (tree / "a.csv").write_bytes(b"1")
    (tree / "deep" / "b.bin").write_bytes(b"\0\xff")
    assert take_inputs((str(tree),)) == {"data/a.csv": b"1", "data/deep/b.bin": b"\0\xff"}


def test_a_link_the_person_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    assert take_inputs((str(tmp_path / "link"),)) == {"link": b"x"}


def test_a_link_below_a_directory_is_refused_and_its_target_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"SECRET-HOST-CONTENT")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(secret)
    with pytest.raises(InvalidRequest, match="data/link"):
        take_inputs((str(tmp_path / "data"),))


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        take_inputs((str(tmp_path / "fifo"),))


def test_two_inputs_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(b"")
    with pytest.raises(InvalidRequest, match="two inputs"):
        take_inputs((str(tmp_path / "a" / "data"), str(tmp_path / "b" / "data")))


@pytest.mark.parametrize("path", ["/", "missing"])
def test_an_input_that_has_no_name_or_does_not_exist_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        take_inputs((path,))


def test_more_bytes_than_the_cap_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "MAX_INPUT_BYTES", 10)
    (tmp_path / "a").write_bytes(b"x" * 6)
    (tmp_path / "b").write_bytes(b"x" * 5)
    with pytest.raises(InvalidRequest) as caught:
        take_inputs((str(tmp_path / "a"), str(tmp_path / "b")))
    assert caught.value.reason == "too_large"


def test_more_files_than_the_cap_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "MAX_INPUT_FILES", 2)
    for name in "abc":
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidRequest) as caught:
        take_inputs((str(tmp_path),))
    assert caught.value.reason == "too_many_files"


def test_a_program_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_bytes(b"print('\xff')")
    with pytest.raises(InvalidRequest) as caught:
        take_code(str(tmp_path / "p.py"))
    assert caught.value.reason == "invalid_text"


def test_a_program_larger_than_the_cap_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take, "MAX_CODE_BYTES", 3)
    (tmp_path / "p.py").write_bytes(b"1234")
    with pytest.raises(InvalidRequest) as caught:
        take_code(str(tmp_path / "p.py"))
    assert caught.value.reason == "too_large"
