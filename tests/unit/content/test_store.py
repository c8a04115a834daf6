"""Kept content: only under its own digest, only with the key, only as long as it is to be kept."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.content import ContentStore
from ringfence.content.sealed_files import seal, unseal
from ringfence.errors import InvalidRequest, QuotaExceeded, Unavailable

NOTHING = f"sha256:{hashlib.sha256(b'').hexdigest()}"


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(tmp_path)


def kept_files(home: Path, part: str = "content") -> list[Path]:
    return sorted((home / "content" / part).iterdir())


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 100_000, os.urandom(3_000_000)])
def test_content_comes_back_under_its_digest(store: ContentStore, content: bytes) -> None:
    digest = store.put(content)
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert store.get(digest) == content


def test_nothing_is_made_before_content_is_put(store: ContentStore, tmp_path: Path) -> None:
    assert store.get(NOTHING) is None
    assert not store.remove(NOTHING)
    assert store.result_of("op", "profile") is None
    assert (store.prune(2**53), store.forget_all()) == (0, 0)
    assert os.listdir(tmp_path) == []


def test_no_home_keeps_content_until_somebody_says_so(tmp_path: Path) -> None:
    assert ContentStore.if_switched_on(tmp_path) is None
    ContentStore(tmp_path).switch(on=True)
    assert ContentStore.if_switched_on(tmp_path) is not None
    ContentStore(tmp_path).switch(on=False)
    assert ContentStore.if_switched_on(tmp_path) is None


def test_neither_content_nor_its_digest_can_be_seen_on_the_disk(store: ContentStore, tmp_path: Path) -> None:
    content = b"PLANTED-SECRET" * 100
    digest = store.put(content).removeprefix("sha256:")
    store.remember_result("OPERATION", "PROFILE", f"sha256:{digest}")
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        for planted in (b"PLANTED", digest.encode(), bytes.fromhex(digest), b"OPERATION", b"PROFILE"):
            assert planted not in path.read_bytes()
            assert planted.decode("latin-1") not in str(path)


def test_everything_is_private_whatever_the_umask(store: ContentStore, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store.put(b"x")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in tmp_path.rglob("*")} == {0}


def test_the_same_content_twice_is_one_file_that_is_never_written_the_same_way(
    store: ContentStore, tmp_path: Path
) -> None:
    store.put(b"x")
    (first,) = kept_files(tmp_path)
    before = first.read_bytes()
    store.put(b"x")
    assert kept_files(tmp_path) == [first]
    assert first.read_bytes() != before


@given(st.binary(max_size=64), st.binary(max_size=8), st.data())
def test_a_sealed_file_with_any_bit_changed_or_cut_does_not_open(
    plain: bytes, bound: bytes, data: st.DataObject
) -> None:
    key = b"k" * 32
    sealed = bytearray(seal(key, plain, bound))
    assert unseal(key, bytes(sealed), bound) == plain
    assert unseal(key, bytes(sealed[: data.draw(st.integers(0, len(sealed) - 1))]), bound) is None
    assert unseal(key, bytes(sealed), bound + b"x") is None
    assert unseal(b"j" * 32, bytes(sealed), bound) is None
    place = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[place // 8] ^= 1 << place % 8
    assert unseal(key, bytes(sealed), bound) is None


def test_damaged_content_is_refused_and_put_again_it_is_whole(store: ContentStore, tmp_path: Path) -> None:
    digest = store.put(b"content")
    (path,) = kept_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(Unavailable) as caught:
        store.get(digest)
    assert caught.value.reason == "damaged"
    store.put(b"content")
    assert store.get(digest) == b"content"


def test_one_content_cannot_be_passed_off_as_another(store: ContentStore, tmp_path: Path) -> None:
    one = store.put(b"one")
    (first,) = kept_files(tmp_path)
    sealed = first.read_bytes()
    two = store.put(b"two")
    (second,) = set(kept_files(tmp_path)) - {first}
    second.write_bytes(sealed)
    assert store.get(one) == b"one"
    with pytest.raises(Unavailable):
        store.get(two)


def test_a_holder_of_the_key_still_cannot_pass_off_other_content(store: ContentStore, tmp_path: Path) -> None:
    digest = store.put(b"true")
    (path,) = kept_files(tmp_path)
    key = bytes.fromhex((tmp_path / "content/key").read_text().splitlines()[1])
    path.write_bytes(seal(key, b"false", digest.encode()))
    with pytest.raises(Unavailable):
        store.get(digest)


@pytest.mark.parametrize("digest", ["", "x", "sha256:", "sha256:" + "g" * 64, "sha256:../../key", "sha256:" + "a" * 65])
def test_only_digests_are_asked_for(store: ContentStore, digest: str) -> None:
    for ask in (store.get, store.remove):
        with pytest.raises(InvalidRequest):
            ask(digest)


def test_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QuotaExceeded):
        ContentStore(tmp_path, max_content_bytes=10).put(b"x" * 11)
    with pytest.raises(QuotaExceeded):
        ContentStore(tmp_path, keep_free_bytes=2**62).put(b"x")
    assert kept_files(tmp_path) == []


def test_a_removed_content_is_gone(store: ContentStore) -> None:
    digest = store.put(b"private")
    assert store.remove(digest)
    assert not store.remove(digest)
    assert store.get(digest) is None


def test_old_content_goes_and_held_content_stays(store: ContentStore, tmp_path: Path) -> None:
    held, old = store.put(b"held"), store.put(b"old")
    store.remember_result("op", "profile", old)
    for path in (*kept_files(tmp_path), *kept_files(tmp_path, "results")):
        os.utime(path, (1_000, 1_000))
    new = store.put(b"new")
    assert store.prune(2_000_000, held=[held]) == 1
    assert [store.get(digest) for digest in (held, old, new)] == [b"held", None, b"new"]
    assert store.result_of("op", "profile") is None


def test_content_put_again_is_young_again(store: ContentStore, tmp_path: Path) -> None:
    digest = store.put(b"x")
    os.utime(kept_files(tmp_path)[0], (1_000, 1_000))
    store.put(b"x")
    assert store.prune(2_000_000) == 0
    assert store.get(digest) == b"x"


def test_after_the_key_is_destroyed_not_even_a_copy_can_be_read(store: ContentStore, tmp_path: Path) -> None:
    digest = store.put(b"private")
    (path,) = kept_files(tmp_path)
    name, copy = path.name, path.read_bytes()
    key = (tmp_path / "content/key").read_text().splitlines()[1]
    assert store.forget_all() == 1
    assert store.get(digest) is None
    assert not (tmp_path / "content/key").exists()
    store.put(b"later")  # under another key
    assert (tmp_path / "content/key").read_text().splitlines()[1] != key
    (tmp_path / "content/content" / name).write_bytes(copy)
    (tmp_path / "content/content" / name).chmod(0o600)
    assert store.get(digest) is None


def test_another_process_forgets_at_once_too(tmp_path: Path) -> None:
    mine = ContentStore(tmp_path)
    digest = mine.put(b"private")
    forgetting = multiprocessing.get_context("fork").Process(target=ContentStore(tmp_path).forget_all)
    forgetting.start()
    forgetting.join()
    assert mine.get(digest) is None


def test_results_are_found_by_operation_and_profile_together(store: ContentStore) -> None:
    one, two = store.put(b"1"), store.put(b"2")
    store.remember_result("op", "strict", one)
    store.remember_result("op", "open", two)
    assert [store.result_of("op", profile) for profile in ("strict", "open", "other")] == [one, two, None]
    store.remember_result("op", "strict", two)
    assert store.result_of("op", "strict") == two


def test_a_damaged_result_is_refused(store: ContentStore, tmp_path: Path) -> None:
    store.remember_result("op", "profile", NOTHING)
    (path,) = kept_files(tmp_path, "results")
    path.write_bytes(b"x" * 200)
    with pytest.raises(Unavailable):
        store.result_of("op", "profile")


def test_threads_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda number=number: digests.append(ContentStore(tmp_path).put(b"%d" % number)))
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ContentStore(tmp_path).get(digest) or b"" for digest in digests) == sorted(
        b"%d" % number for number in range(16)
    )


# --- somebody was here first ---


def test_a_key_that_others_could_have_read_is_not_used(store: ContentStore, tmp_path: Path) -> None:
    store.put(b"x")
    (tmp_path / "content/key").chmod(0o644)
    with pytest.raises(Unavailable) as caught:
        store.put(b"y")
    assert caught.value.reason == "key_store_unsafe"


@pytest.mark.parametrize("part", ["content", "content/key", "content/content"])
def test_a_link_in_the_place_of_what_is_ours_is_not_followed(store: ContentStore, tmp_path: Path, part: str) -> None:
    digest = store.put(b"x")
    away = tmp_path / "away"
    (tmp_path / part).rename(away)
    (tmp_path / part).symlink_to(away)
    for attempt in (lambda: store.put(b"y"), lambda: store.get(digest)):
        with pytest.raises(Unavailable):
            attempt()


def test_a_fifo_in_the_place_of_content_makes_nobody_wait(store: ContentStore, tmp_path: Path) -> None:
    digest = store.put(b"x")
    (path,) = kept_files(tmp_path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(Unavailable):
        store.get(digest)


def test_a_key_that_is_none_is_refused_and_not_replaced(store: ContentStore, tmp_path: Path) -> None:
    store.put(b"x")
    (tmp_path / "content/key").write_text("not a key")
    with pytest.raises(Unavailable) as caught:
        store.put(b"y")
    assert caught.value.reason == "damaged"
    assert (tmp_path / "content/key").read_text() == "not a key"


@given(st.lists(st.binary(max_size=40), max_size=6))
@settings(max_examples=20)
def test_what_was_put_last_is_what_is_kept(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    store = ContentStore(tmp_path_factory.mktemp("home"))
    digests = [store.put(content) for content in contents]
    assert [store.get(digest) for digest in digests] == contents
    for digest in set(digests):
        assert store.remove(digest)
    assert [store.get(digest) for digest in digests] == [None] * len(contents)
