"""Signed notes and checkpoints: published examples, and that no byte of one can be another."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ringfence.crypto.ed25519 import verify
from ringfence.errors import InvalidRequest
from ringfence.evidence.note import (
    Checkpoint,
    VerifierKey,
    log_origin,
    open_note,
    read_note,
    sign_note,
)

SECRET = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = SECRET.public_key().public_bytes_raw()
KEY = VerifierKey("ringfence/0a1b2c3d", PUBLIC)
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER_KEY = VerifierKey("witness.example/w", OTHER.public_key().public_bytes_raw())
CHECKPOINT = Checkpoint(log_origin("lg-1"), 20852163, hashlib.sha256(b"root").digest())
NOTE = sign_note(CHECKPOINT.text(), KEY.name, KEY.public, SECRET.sign)

# The example of the note package of the Go project's checksum database, and that database's own key.
NEUMANN_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
GO_SUMS_KEY = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"


def reason_of(note: str, *keys: VerifierKey) -> str:
    with pytest.raises(InvalidRequest) as refused:
        open_note(note, keys, verify)
    return refused.value.reason


@pytest.mark.parametrize("text", [NEUMANN_KEY, GO_SUMS_KEY])
def test_the_published_keys_are_read_and_written(text: str) -> None:
    assert VerifierKey.parse(text).text() == text


def test_the_published_note_is_opened() -> None:
    key = VerifierKey.parse(NEUMANN_KEY)
    opened = open_note(NEUMANN_NOTE, [key], verify)
    assert opened.signers == (key,)
    assert opened.text.endswith("your problem is.\n")


def test_a_checkpoint_has_the_three_lines_of_the_specification() -> None:
    text = "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n"
    checkpoint = Checkpoint.parse(text)
    assert (checkpoint.origin, checkpoint.size, len(checkpoint.root)) == ("example.com/behind-the-sofa", 20852163, 32)
    assert checkpoint.text() == text
    assert Checkpoint.parse(text + "more\n").extensions == ("more",)


def test_a_signed_checkpoint_is_opened_by_its_key() -> None:
    opened = open_note(NOTE, [OTHER_KEY, KEY], verify)
    assert Checkpoint.parse(opened.text) == CHECKPOINT
    assert opened.signers == (KEY,)


def test_a_witness_may_add_its_line() -> None:
    line = sign_note(CHECKPOINT.text(), OTHER_KEY.name, OTHER_KEY.public, OTHER.sign).splitlines(keepends=True)[-1]
    assert open_note(NOTE + line, [KEY], verify).signers == (KEY,)
    assert open_note(NOTE + line, [OTHER_KEY, KEY], verify).signers == (KEY, OTHER_KEY)


def test_a_text_with_empty_lines_is_separated_at_the_last() -> None:
    note = sign_note("one\n\n\u2014 not a signature\n", KEY.name, KEY.public, SECRET.sign)
    assert open_note(note, [KEY], verify).text == "one\n\n\u2014 not a signature\n"


def test_a_note_that_only_strangers_signed_is_refused() -> None:
    assert reason_of(NOTE, OTHER_KEY) == "unknown_signer"
    assert reason_of(NOTE) == "unknown_signer"
    # the name alone does not make a signer known
    assert reason_of(NOTE, VerifierKey(KEY.name, OTHER_KEY.public)) == "unknown_signer"


def test_a_known_key_whose_line_does_not_hold_spoils_the_note() -> None:
    line = sign_note("other\n", OTHER_KEY.name, OTHER_KEY.public, OTHER.sign).splitlines(keepends=True)[-1]
    assert reason_of(NOTE + line, KEY, OTHER_KEY) == "bad_signature"
    short = sign_note(CHECKPOINT.text(), KEY.name, KEY.public, lambda text: SECRET.sign(text)[:63])
    assert reason_of(short, KEY) == "bad_signature"
    # whatever the function thinks that verifies
    with pytest.raises(InvalidRequest):
        open_note(short, [KEY], lambda *_: True)


@given(st.integers(0, len(NOTE) - 1), st.sampled_from("\n\t\0 +=A9\u2014\u00a0\ud800"))
def test_no_character_of_a_note_can_be_another(place: int, character: str) -> None:
    for changed in (NOTE[:place] + character + NOTE[place + 1 :], NOTE[:place] + character + NOTE[place:]):
        if changed != NOTE:
            assert reason_of(changed, KEY) in {"bad_note", "bad_signature", "unknown_signer"}


@given(st.integers(0, len(NOTE) - 1))
def test_no_character_of_a_note_can_be_left_out(place: int) -> None:
    assert reason_of(NOTE[:place] + NOTE[place + 1 :], KEY) in {"bad_note", "bad_signature", "unknown_signer"}


def test_the_bits_that_base64_leaves_over_are_not_free() -> None:
    assert NOTE.endswith("=\n")
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    changed = NOTE[:-3] + letters[letters.index(NOTE[-3]) ^ 1] + NOTE[-2:]
    assert reason_of(changed, KEY) == "bad_note"


@pytest.mark.parametrize(
    "note",
    [
        "",
        "\n",
        "text\n",
        "text\n\n",
        "text\n\n\u2014 name\n",
        "text\n\n- name AAAAAAA=\n",
        NOTE.rstrip("\n"),
        NOTE + "\n",
        NOTE + "x\n",
        NOTE.replace("\n", "\r\n"),
        NOTE + NOTE.splitlines(keepends=True)[-1] * 64,
    ],
)
def test_what_is_no_note_is_not_read(note: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_note(note)
    assert refused.value.reason == "bad_note"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\n1\n",
        "\n1\n" + "A" * 43 + "=\n",
        "a\n01\n" + "A" * 43 + "=\n",
        "a\n-1\n" + "A" * 43 + "=\n",
        "a\n1\n" + "A" * 43 + "=",
        "a\n1\n" + "A" * 42 + "B=\n",
        "a\n1\nAAAA\n",
        "a\n1\n" + "A" * 43 + "=\n\n",
        "a\n\u0661\n" + "A" * 43 + "=\n",
    ],
)
def test_what_is_no_checkpoint_is_not_read(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Checkpoint.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        NEUMANN_KEY + "\n",
        NEUMANN_KEY.replace("c74f20a3", "c74f20a4"),
        NEUMANN_KEY.replace("c74f20a3", "C74F20A3"),
        NEUMANN_KEY.replace("PeterNeumann", "PeterNeuman"),
        NEUMANN_KEY.replace("PeterNeumann", "Peter Neumann"),
        NEUMANN_KEY[:-1],
        NEUMANN_KEY.replace("+AR", "+BR"),
    ],
)
def test_what_is_no_key_is_not_read(text: str) -> None:
    with pytest.raises(InvalidRequest):
        VerifierKey.parse(text)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\u2003b", "a\nb"])
def test_a_name_that_no_signature_line_can_carry_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        sign_note("text\n", name, PUBLIC, SECRET.sign)


@pytest.mark.parametrize("text", ["", "text", "a\tb\n", "a\rb\n", "\ud800\n"])
def test_a_text_that_no_note_can_carry_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        sign_note(text, KEY.name, PUBLIC, SECRET.sign)
