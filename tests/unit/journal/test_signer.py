"""The evidence key of a home: one for all its processes, read by nobody else, and never shown."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfence.errors import InvalidRequest, Unavailable
from ringfence.evidence.note import Checkpoint, VerifierKey, open_note
from ringfence.journal.signer import Signer, key_in_home, trusted_keys, verify


def key_file(home: Path) -> Path:
    return home / "evidence" / "signer.key"


def test_a_home_has_one_key_from_the_first_signer_on(tmp_path: Path) -> None:
    signer = Signer.in_home(tmp_path)
    again = Signer.in_home(tmp_path)
    assert signer.key == again.key == key_in_home(tmp_path)
    assert signer.sign(b"m") == again.sign(b"m")
    assert verify(again.key.public, b"m", signer.sign(b"m"))
    assert signer.name == f"ringfence/{signer.key.public.hex()[:8]}"
    assert VerifierKey.parse(signer.vkey) == signer.key
    assert Signer.in_home(tmp_path / "other").key != signer.key


def test_a_checkpoint_it_signed_is_opened_with_its_key(tmp_path: Path) -> None:
    signer = Signer.in_home(tmp_path)
    checkpoint = Checkpoint("ringfence/lg-1", 3, bytes(32))
    opened = open_note(signer.sign_checkpoint(checkpoint), trusted_keys(signer.vkey), verify)
    assert Checkpoint.parse(opened.text) == checkpoint


def test_the_key_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Signer.in_home(tmp_path / "home")
    finally:
        os.umask(old)
    assert stat.S_IMODE(key_file(tmp_path / "home").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "home" / "evidence").stat().st_mode) == 0o700


def test_processes_that_make_the_key_at_once_agree_on_it(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from ringfence.journal.signer import Signer; sys.stdin.read();"
        "print(Signer.in_home(pathlib.Path(sys.argv[1])).vkey)"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    said = set()
    for racer in racers:
        assert racer.stdout is not None
        said.add(racer.stdout.read())
        racer.stdout.close()
        assert racer.wait() == 0
    assert said == {Signer.in_home(tmp_path).vkey + "\n"}
    assert [path.name for path in (tmp_path / "evidence").iterdir()] == ["signer.key"]


def test_asking_for_the_key_makes_none(tmp_path: Path) -> None:
    assert key_in_home(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def let_others_read(home: Path) -> None:
    key_file(home).chmod(0o644)


def let_others_enter(home: Path) -> None:
    (home / "evidence").chmod(0o755)


def make_a_link(home: Path) -> None:
    key_file(home).rename(home / "elsewhere")
    key_file(home).symlink_to(home / "elsewhere")


def make_the_directory_a_link(home: Path) -> None:
    (home / "evidence").rename(home / "elsewhere")
    (home / "evidence").symlink_to(home / "elsewhere")


def make_a_pipe(home: Path) -> None:
    key_file(home).unlink()
    os.mkfifo(key_file(home), 0o600)


def give_away(home: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(key_file(home), 12345, -1)


def empty(home: Path) -> None:
    key_file(home).write_bytes(b"")


def cut(home: Path) -> None:
    key_file(home).write_bytes(key_file(home).read_bytes()[:-3])


def rename_it(home: Path) -> None:
    key_file(home).write_bytes(key_file(home).read_bytes().replace(b"ringfence/", b"ringfence/0"))


def lengthen(home: Path) -> None:
    key_file(home).write_bytes(key_file(home).read_bytes() + b"\n" * 5000)


@pytest.mark.parametrize(
    "spoil",
    [
        let_others_read,
        let_others_enter,
        make_a_link,
        make_the_directory_a_link,
        make_a_pipe,
        give_away,
        empty,
        cut,
        rename_it,
        lengthen,
    ],
)
def test_a_key_that_others_may_have_touched_is_not_used(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    signer = Signer.in_home(tmp_path)
    spoil(tmp_path)
    for use in (Signer.in_home, key_in_home):
        with pytest.raises(Unavailable) as refused:
            use(tmp_path)
        assert refused.value.reason == "key_store_unsafe"
        assert signer._seed.hex() not in str(refused.value)


def test_a_key_that_cannot_be_written_is_a_clear_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match="No space left"):
        Signer.in_home(tmp_path)
    assert list((tmp_path / "evidence").iterdir()) == []


def test_the_private_half_is_not_shown(tmp_path: Path) -> None:
    signer = Signer.in_home(tmp_path)
    assert repr(signer) == f"Signer({signer.name})"
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(signer)


def test_trusted_keys_are_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    one, two = Signer.in_home(tmp_path / "a").key, Signer.in_home(tmp_path / "b").key
    listed = tmp_path / "keys"
    listed.write_text(f"# whom we trust\n{one.text()}\n\n  {two.text()}\n")
    assert trusted_keys(one.text()) == (one,)
    assert trusted_keys(str(listed)) == (one, two)


@pytest.mark.parametrize("content", ["", "# none\n", "nonsense\n", "x" * 100_000, "#\n" * 50_000])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str) -> None:
    listed = tmp_path / "keys"
    listed.write_text(content)
    with pytest.raises(InvalidRequest):
        trusted_keys(str(listed))


@pytest.mark.parametrize("given", ["", "/nonexistent", "a\0b", "name+00000000+AAAA"])
def test_what_is_neither_key_nor_file_is_refused(given: str) -> None:
    with pytest.raises(InvalidRequest, match="neither"):
        trusted_keys(given)
