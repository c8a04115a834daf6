"""What is revoked anywhere in a home is void everywhere in it at once, and a list that cannot be read voids all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.grants.desk import CALL, Desk, StillClock, another

from ringfence.authority.credential import unsigned
from ringfence.authority.issuer_key import CLOCK_TOLERANCE_MS
from ringfence.authority.narrowing import Narrowing
from ringfence.capability.budget import Budget
from ringfence.errors import Denied, ExecutionFailed, InvalidRequest
from ringfence.grants import revocations as revocations_module
from ringfence.private_files import read_some

pytestmark = pytest.mark.needs("biscuit")
SRC = Path(__file__).resolve().parents[3] / "src"


def refusal(desk: Desk, token: str) -> str | None:
    try:
        desk.verifier.admit(token, CALL)
    except Denied as denied:
        return denied.reason
    return None


def the_list(desk: Desk) -> Path:
    return desk.home / "revocations" / "list"


def test_a_grant_revoked_by_its_id_is_void_for_every_process_of_the_home(desk: Desk) -> None:
    token, other = desk.token(), desk.beside()
    assert (refusal(desk, token), refusal(other, token)) == (None, None)
    desk.revocations.revoke("grant", desk.codec.peek(token).grant.nonce, tenant=CALL.tenant)
    assert (refusal(desk, token), refusal(other, token)) == ("revoked", "revoked")
    assert refusal(desk, desk.token()) is None


def test_it_is_void_in_a_process_that_was_not_there_before(desk: Desk) -> None:
    grant = desk.credential().grant
    desk.revocations.revoke("grant", grant.nonce, tenant=grant.tenant)
    code = (
        "import sys; from pathlib import Path; from ringfence.clock import SystemClock; "
        "from ringfence.grants.revocations import RevocationFile; "
        "print(sorted(RevocationFile(Path(sys.argv[1]), SystemClock())._current()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(desk.home)], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == repr([("grant", grant.tenant, grant.nonce)])


def test_an_id_revoked_by_one_tenant_is_not_revoked_for_another(desk: Desk) -> None:
    token = desk.token()
    desk.revocations.revoke("grant", desk.codec.peek(token).grant.nonce, tenant="mallory")
    assert refusal(desk, token) is None


def test_revoking_a_block_voids_what_was_made_from_it_and_not_what_it_was_made_from(desk: Desk) -> None:
    wide = desk.token()
    narrow = desk.codec.attenuate(wide, Narrowing(budget=Budget(calls=5)))
    narrower = desk.codec.attenuate(narrow, Narrowing(budget=Budget(calls=1)))
    desk.revocations.revoke("block", desk.codec.peek(narrow).revocation_ids[-1])
    assert [refusal(desk, token) for token in (wide, narrow, narrower)] == [None, "revoked", "revoked"]
    desk.revocations.revoke("block", desk.codec.peek(wide).revocation_ids[0])
    assert refusal(desk, wide) == "revoked"


def test_revoking_a_subject_voids_what_it_was_granted_until_then(desk: Desk) -> None:
    before, undated = desk.token(), replace(desk.credential().grant, not_before=0)
    desk.revocations.revoke("subject", CALL.subject_id, tenant=CALL.tenant)
    assert refusal(desk, before) == "revoked"
    assert desk.revocations.is_revoked(undated)
    assert desk.revocations.is_revoked(unsigned(undated))
    assert not desk.revocations.is_revoked(desk.credential(another(CALL, subject_id="agent-8")))
    assert not desk.revocations.is_revoked(desk.credential(another(CALL, tenant="other")))
    desk.clock.ms += CLOCK_TOLERANCE_MS + 1
    assert refusal(desk, desk.token()) is None
    assert refusal(desk, before) == "revoked"


def test_without_a_list_and_without_keys_nothing_was_revoked_and_nothing_is_made(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home", StillClock())
    assert not desk.revocations.is_revoked(desk.credential())
    assert not desk.home.exists()


def test_the_list_is_not_read_again_while_it_has_not_changed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.revocations.revoke("grant", "gr_1", tenant="t")
    assert not desk.revocations.is_revoked(desk.credential())
    reads: list[int] = []

    def counted(fd: int, most: int) -> bytes:
        reads.append(fd)
        return read_some(fd, most)

    monkeypatch.setattr(revocations_module, "read_some", counted)
    for _ in range(5):
        desk.revocations.is_revoked(desk.credential())
    assert reads == []
    desk.beside().revocations.revoke("grant", "gr_2", tenant="t")
    reads.clear()
    desk.revocations.is_revoked(desk.credential())
    assert len(reads) == 1


def test_every_damaged_byte_of_the_list_denies_everything(desk: Desk) -> None:
    for name in ("gr_1", "gr_2"):
        desk.revocations.revoke("grant", name, tenant="t")
    token = desk.token()
    good = the_list(desk).read_bytes()
    for at in range(len(good)):
        the_list(desk).write_bytes(good[:at] + bytes([good[at] ^ 0x11]) + good[at + 1 :])
        assert refusal(desk.beside(), token) == "revocations_unreadable", at
    the_list(desk).write_bytes(good)
    assert refusal(desk.beside(), token) is None


def test_a_list_cut_anywhere_but_between_its_lines_denies_everything(desk: Desk) -> None:
    desk.revocations.revoke("grant", "gr_1", tenant="t")
    token = desk.token()
    good = the_list(desk).read_bytes()
    whole = {good.index(b"\n") + 1, len(good)}
    for length in range(len(good) + 1):
        the_list(desk).write_bytes(good[:length])
        expected = None if length in whole else "revocations_unreadable"
        assert refusal(desk.beside(), token) == expected, length


def test_what_a_process_knows_to_be_revoked_cannot_be_taken_off_the_list(desk: Desk) -> None:
    token = desk.token()
    empty = the_list(desk).read_bytes()
    desk.revocations.revoke("grant", "gr_1", tenant="t")
    assert refusal(desk, token) is None
    the_list(desk).write_bytes(empty)
    assert refusal(desk, token) == "revocations_unreadable"


def test_a_list_that_is_gone_denies_everything_where_there_are_keys(desk: Desk) -> None:
    token = desk.token()
    the_list(desk).unlink()
    assert refusal(desk, token) == "revocations_unreadable"
    assert refusal(desk.beside(), token) == "revocations_unreadable"
    for change in (lambda: desk.keys.create(), lambda: desk.revocations.revoke("grant", "x", tenant="t")):
        with pytest.raises(Denied) as caught:
            change()
        assert caught.value.reason == "revocations_unreadable"
    assert not the_list(desk).exists()


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_list_that_others_may_read_or_write_denies_everything(desk: Desk, mode: int) -> None:
    token = desk.token()
    the_list(desk).chmod(mode)
    assert refusal(desk, token) == "revocations_unreadable"


def test_a_link_in_place_of_the_list_denies_everything(desk: Desk, tmp_path: Path) -> None:
    token = desk.token()
    moved = tmp_path / "moved"
    the_list(desk).rename(moved)
    the_list(desk).symlink_to(moved)
    assert refusal(desk.beside(), token) == "revocations_unreadable"


def test_a_damaged_list_is_not_written_to(desk: Desk) -> None:
    with the_list(desk).open("ab") as file:
        file.write(b"half a li")
    before = the_list(desk).read_bytes()
    with pytest.raises(Denied):
        desk.revocations.revoke("grant", "gr_9", tenant="t")
    assert the_list(desk).read_bytes() == before


def test_a_write_that_fails_half_way_leaves_the_list_whole(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = the_list(desk).read_bytes()

    def full(fd: int, content: bytes) -> None:
        os.write(fd, content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(revocations_module, "write_all", full)
    with pytest.raises(ExecutionFailed, match="No space") as caught:
        desk.revocations.revoke("grant", "gr_1", tenant="t")
    assert caught.value.reason == "io"
    assert the_list(desk).read_bytes() == before


def test_revocations_of_many_at_once_are_all_kept(desk: Desk) -> None:
    def revoke_ten(worker: int) -> None:
        mine = desk.beside()
        for number in range(10):
            mine.revocations.revoke("grant", f"gr_{worker}_{number}", tenant="t")
            mine.revocations.is_revoked(mine.credential())

    threads = [threading.Thread(target=revoke_ten, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = desk.beside().revocations._current()
    assert {path[-1] for path in found} == {f"gr_{worker}_{number}" for worker in range(4) for number in range(10)}


@pytest.mark.parametrize("name", ["", "x" * 1025])
def test_what_can_be_no_name_cannot_be_revoked(desk: Desk, name: str) -> None:
    with pytest.raises(InvalidRequest):
        desk.revocations.revoke("grant", name, tenant="t")


def test_a_name_with_line_ends_and_quotes_stays_one_name(desk: Desk) -> None:
    name = 'a\n"b"\u2028\x00'
    desk.revocations.revoke("subject", name, tenant="t")
    assert set(desk.beside().revocations._current()) == {("subject", "t", name)}
