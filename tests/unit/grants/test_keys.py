"""Keys lie where only their owner reads them, rotate by making a new one, and never show their private half."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import stat
import threading
import traceback
from pathlib import Path

import pytest
from tests.unit.grants.desk import CALL, Desk, StillClock

from ringfence.authority.issuer_key import SigningKey
from ringfence.errors import InvalidRequest, Unavailable

pytestmark = pytest.mark.needs("biscuit")


def files(desk: Desk) -> dict[str, Path]:
    return {path.suffix: path for path in (desk.home / "keys").iterdir()}


def test_keys_are_made_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home", StillClock())
    old = os.umask(0)
    try:
        desk.keys.create()
        desk.revocations.revoke("grant", "gr_1", tenant="t")
    finally:
        os.umask(old)
    for place in (desk.home / "keys", desk.home / "revocations"):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o600}


def test_the_newest_valid_key_signs_and_all_are_listed(desk: Desk) -> None:
    (first,) = desk.keys.list_keys()
    desk.clock.ms += 10
    second = desk.keys.create(valid_ms=1000)
    assert desk.keys.list_keys() == (first, second)
    assert desk.keys.signing_key().key == second
    desk.clock.ms += 1000
    assert desk.keys.signing_key().key == first
    assert desk.keys.find(second.key_id) == second


def test_without_a_key_nothing_is_signed(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        Desk(tmp_path / "home", StillClock()).keys.signing_key()
    assert caught.value.reason == "no_signing_key"
    assert not (tmp_path / "home").exists()


def test_a_revoked_key_signs_no_more_and_its_private_half_is_gone(desk: Desk) -> None:
    key = desk.keys.signing_key().key
    desk.keys.revoke(key.key_id)
    assert desk.keys.find(key.key_id) == key
    assert ".key" not in files(desk)
    with pytest.raises(Unavailable):
        desk.beside().keys.signing_key()


@pytest.mark.parametrize("key_id", ["00000000", "", "../../etc/passwd", "x" * 9])
def test_a_key_that_is_not_there_cannot_be_revoked(desk: Desk, key_id: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        desk.keys.revoke(key_id)
    assert caught.value.reason == "not_found"


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o777])
def test_a_directory_that_others_may_enter_is_not_used(desk: Desk, mode: int) -> None:
    (desk.home / "keys").chmod(mode)
    for use in (desk.keys.create, desk.keys.signing_key, desk.keys.list_keys, lambda: desk.keys.find("00000000")):
        with pytest.raises(Unavailable) as caught:
            use()
        assert caught.value.reason == "key_store_unsafe"
        assert caught.value.fix is not None
        assert "chmod 700" in caught.value.fix


@pytest.mark.parametrize(("suffix", "mode"), [(".key", 0o640), (".key", 0o604), (".json", 0o622)])
def test_a_file_that_others_may_read_or_write_is_not_used(desk: Desk, suffix: str, mode: int) -> None:
    place = files(desk)[suffix]
    place.chmod(mode)
    with pytest.raises(Unavailable) as caught:
        desk.keys.signing_key()
    assert (caught.value.reason, caught.value.fix) == ("key_store_unsafe", f"chmod 600 {place}")


@pytest.mark.parametrize("suffix", [".key", ".json"])
def test_a_link_in_place_of_a_file_is_not_followed(desk: Desk, suffix: str, tmp_path: Path) -> None:
    place = files(desk)[suffix]
    moved = tmp_path / "moved"
    place.rename(moved)
    place.symlink_to(moved)
    with pytest.raises(Unavailable) as caught:
        desk.keys.signing_key()
    assert caught.value.reason == "key_store_unsafe"


def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home", StillClock())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    desk.home.mkdir()
    (desk.home / "keys").symlink_to(elsewhere)
    desk.revocations.create = lambda: None  # type: ignore[method-assign]  # the lost list would refuse first
    with pytest.raises(Unavailable) as caught:
        desk.keys.create()
    assert caught.value.reason == "key_store_unsafe"
    assert list(elsewhere.iterdir()) == []


def test_a_fifo_in_place_of_a_key_does_not_hang(desk: Desk) -> None:
    place = files(desk)[".key"]
    place.unlink()
    os.mkfifo(place, 0o600)
    with pytest.raises(Unavailable):
        desk.keys.signing_key()


@pytest.mark.needs("root")
def test_a_directory_of_somebody_else_is_not_used(desk: Desk) -> None:
    os.chown(desk.home / "keys", 65534, 65534)
    with pytest.raises(Unavailable) as caught:
        desk.keys.list_keys()
    assert caught.value.reason == "key_store_unsafe"


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b"[" * 3000, b'{"public": 1}', b"\xff"])
def test_a_damaged_key_file_is_named_and_never_used(desk: Desk, content: bytes) -> None:
    files(desk)[".json"].write_bytes(content)
    with pytest.raises(Unavailable, match="is damaged"):
        desk.keys.list_keys()


def test_a_key_file_under_the_name_of_another_key_is_not_used(desk: Desk) -> None:
    desk.clock.ms += 1
    ours, theirs = desk.keys.list_keys()[0], desk.keys.create()
    (desk.home / "keys" / f"{ours.key_id}.json").write_bytes(
        (desk.home / "keys" / f"{theirs.key_id}.json").read_bytes()
    )
    with pytest.raises(Unavailable, match="is damaged"):
        desk.keys.find(ours.key_id)


def test_the_private_half_shows_in_no_text_and_no_copy(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    key = desk.keys.signing_key()
    secret = key.reveal()
    shown = [repr(key), str(key), f"{key}", repr([key]), repr(vars(desk))]
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").warning("%r %s", key, key)
    for spoil in (b"\x00", b"short"):
        try:
            desk.codec.encode(desk.credential().grant, SigningKey(key.key, secret + spoil))
        except Exception as error:
            shown += [str(error), repr(error), *traceback.format_exception(error)]
    files(desk)[".key"].write_bytes(secret.hex().encode() + b"00")
    with pytest.raises(Unavailable) as caught:
        desk.keys.signing_key()
    shown += [str(caught.value), caplog.text, *traceback.format_exception(caught.value)]
    for text in shown:
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text
    for copying in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            copying(key)


def test_the_token_does_not_hold_the_issuers_private_half(desk: Desk) -> None:
    import base64

    secret = desk.keys.signing_key().reveal()
    token = desk.token()
    assert secret not in base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    desk.verifier.admit(token, CALL)


def test_keys_made_by_many_at_once_are_all_there(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home", StillClock())
    made: list[str] = []
    failed: list[Exception] = []

    def create() -> None:
        try:
            made.append(desk.beside().keys.create().key_id)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(key.key_id for key in desk.keys.list_keys()) == sorted(made)
    assert len(set(made)) == 6
