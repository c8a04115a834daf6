"""Attack signed grants: every byte, every length, foreign blocks, other keys, and what a holder may append.

Each defence was taken out once and its test seen red: the comparison with the one spelling of a token, the key's own
public half in the first block, the exact shape of a block, the refusal of third parties, the meet of the blocks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import string
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.grants.desk import CALL, Desk, StillClock, another

from ringfence.authority.narrowing import Narrowing, read_narrowing
from ringfence.capability.budget import Budget
from ringfence.capability.canonical import canonical
from ringfence.errors import Denied, InvalidRequest, RingfenceError
from ringfence.errors.table import TABLE
from ringfence.grants.biscuit import MAX_CHARACTERS

biscuit_auth: Any = None
with contextlib.suppress(ImportError):  # there is no wheel for every Python: the mark below says so
    biscuit_auth = import_module("biscuit_auth")

pytestmark = [pytest.mark.needs("biscuit"), pytest.mark.guarantee(17)]
ROOT = Path(__file__).resolve().parents[2]
ALPHABET = string.ascii_letters + string.digits + "-_"
REFUSALS = {"bad_token", "tampered", "unknown_key", "wrong_key"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("grants") / "home", StillClock())
    made.keys.create()
    return made


@pytest.fixture(scope="module")
def token(desk: Desk) -> str:
    """Return a real token of two blocks."""
    return desk.codec.attenuate(desk.token(calls=3), Narrowing(budget=Budget(calls=2)))


def refused(desk: Desk, token: Any) -> str:
    """Return the reason a token is refused with; anything but a denial of ours fails the test."""
    with pytest.raises(Denied) as caught:
        desk.verifier.admit(token, CALL)
    assert caught.value.reason in TABLE[caught.value.code].reasons
    return caught.value.reason


def unpacked(token: str) -> bytes:
    return base64.urlsafe_b64decode(token)


def packed(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode()


# --- the bytes ---


def test_a_token_with_any_one_bit_changed_is_refused(desk: Desk, token: str) -> None:
    good = unpacked(token)
    assert packed(good) == token
    assert desk.verifier.admit(token, CALL).grant.budget.calls == 2
    seen: Counter[str] = Counter()
    for at in range(len(good)):
        for bit in range(8):
            bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
            seen[refused(desk, packed(bad))] += 1
    assert set(seen) <= REFUSALS
    assert seen["tampered"] > len(good)


def test_a_token_with_any_one_character_changed_is_refused(desk: Desk, token: str) -> None:
    for at, character in enumerate(token):
        near = ALPHABET[(ALPHABET.find(character) + 1) % 64]
        for other in {near, "=", "é", "\n"} - {character}:
            assert refused(desk, token[:at] + other + token[at + 1 :]) in REFUSALS


def test_a_token_cut_to_any_length_is_refused(desk: Desk, token: str) -> None:
    for length in range(len(token)):
        assert refused(desk, token[:length]) in REFUSALS
        assert refused(desk, token[length + 1 :]) in REFUSALS
    good = unpacked(token)
    for length in range(len(good)):
        assert refused(desk, packed(good[:length])) in REFUSALS


@pytest.mark.parametrize("extra", ["=", "==", "\n", " ", "A", "AAAA", "\0", "%3D"])
def test_a_token_with_something_added_is_refused(desk: Desk, token: str, extra: str) -> None:
    assert refused(desk, token + extra) in REFUSALS
    assert refused(desk, extra + token) in REFUSALS


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_refused_and_crash_nothing(content: bytes) -> None:
    from ringfence.grants.biscuit import BiscuitCodec

    codec = BiscuitCodec()
    for read in (codec.peek, lambda text: codec.decode(text, lambda _: None)):
        with pytest.raises(Denied):
            read(packed(content))


def test_another_spelling_of_the_same_signed_message_is_refused(desk: Desk, token: str) -> None:
    """The key id is outside every signature, and protobuf has several spellings for one number."""
    good = unpacked(token)
    assert good[0] == 0x08, "the message begins with the id of the key"
    end = next(at for at in range(1, 11) if not good[at] & 0x80)
    stretched = good[:end] + bytes([good[end] | 0x80, 0x00]) + good[end + 1 :]
    twice = good[: end + 1] + good
    for content in (stretched, twice, good[end + 1 :]):
        public = biscuit_auth.PublicKey.from_bytes(desk.keys.signing_key().key.public, biscuit_auth.Algorithm.Ed25519)
        biscuit_auth.Biscuit.from_bytes(content, public)  # the library takes it: the signatures are good
        assert refused(desk, packed(content)) in REFUSALS


# --- the blocks ---


def signed(desk: Desk, source: str, parameters: dict[str, Any]) -> str:
    """Sign any first block with the trusted key."""
    key = desk.keys.signing_key()
    builder = biscuit_auth.BiscuitBuilder(source, parameters)
    builder.set_root_key_id(int(key.key.key_id, 16))
    secret = biscuit_auth.PrivateKey.from_bytes(key.reveal(), biscuit_auth.Algorithm.Ed25519)
    text: str = builder.build(secret).to_base64()
    return text


def appended(desk: Desk, token: str, source: str, parameters: dict[str, Any]) -> str:
    """Append any block, as a holder with the library can."""
    public = biscuit_auth.PublicKey.from_bytes(desk.keys.signing_key().key.public, biscuit_auth.Algorithm.Ed25519)
    biscuit = biscuit_auth.Biscuit.from_base64(token, public)
    text: str = biscuit.append(biscuit_auth.BlockBuilder(source, parameters)).to_base64()
    return text


def fact(form: Any) -> dict[str, Any]:
    return {"c": form if isinstance(form, bytes) else canonical(form)}


NARROW = "ringfence_narrowing({c})"


@pytest.mark.parametrize(
    ("source", "parameters"),
    [
        (NARROW, fact({"tenant": "other"})),
        (NARROW, fact({"call_id": "call-2"})),
        (NARROW, fact({"nonce": "fresh"})),
        (NARROW, fact({"not_before": 0})),
        (NARROW, fact({"widen": True})),
        (NARROW, fact([])),
        (NARROW, fact(b"{}  ")),
        (NARROW, fact(b'{"budget":{"calls":1},"budget":{}}')),
        (NARROW, fact(b'{"budget":{"calls":1e0}}')),
        (NARROW, fact(b'{"limits":{"wall_seconds":NaN}}')),
        (NARROW, fact(b'{"limits":{"wall_seconds":Infinity}}')),
        (NARROW, fact(b"[" * 20_000)),
        (NARROW, fact(b'{"capabilities":' + b"[" * 20_000)),
        (NARROW, fact(b"\xff\xfe")),
        (NARROW, {"c": b""}),
        (NARROW, {"c": ""}),
        (NARROW, {"c": "{}"}),
        (NARROW, {"c": "hex:7b7d"}),
        (NARROW, {"c": 'x"); ringfence_narrowing(hex:7b7d'}),
        (NARROW, {"c": 7}),
        ("ringfence_narrowing({c}); ringfence_narrowing({c})", fact({})),
        ("ringfence_narrowing({c}); check if false", fact({})),
        ("ringfence_narrowing({c}); reject if true", fact({})),
        ("ringfence_narrowing({c}) <- true", fact({})),
        ("ringfence_grant({c})", fact({})),
        ("ringfence_grant({c}); check if ringfence_grants(1)", fact({})),
        ("check if false", {}),
        ("", {}),
    ],
)
def test_a_block_that_is_not_exactly_ours_voids_the_token(desk: Desk, source: str, parameters: dict[str, Any]) -> None:
    assert refused(desk, appended(desk, desk.token(), source, parameters)) == "bad_token"


def test_a_restriction_of_somebody_elses_making_is_never_passed_over(desk: Desk) -> None:
    """A holder who restricts the token with a stock tool gets a token that is good for nothing, not an unrestricted."""
    narrowed = appended(desk, desk.token(), "check if operation({c})", {"c": "read"})
    assert refused(desk, narrowed) == "bad_token"
    # nor does it become good by being narrowed further in our own way
    assert refused(desk, appended(desk, narrowed, NARROW, fact({}))) == "bad_token"


def test_a_block_of_a_third_party_voids_the_token(desk: Desk) -> None:
    public = biscuit_auth.PublicKey.from_bytes(desk.keys.signing_key().key.public, biscuit_auth.Algorithm.Ed25519)
    biscuit = biscuit_auth.Biscuit.from_base64(desk.token(), public)
    other = biscuit_auth.KeyPair()
    block = biscuit.third_party_request().create_block(other.private_key, biscuit_auth.BlockBuilder(NARROW, fact({})))
    assert refused(desk, biscuit.append_third_party(other.public_key, block).to_base64()) == "bad_token"


def test_a_verifier_that_does_not_know_our_facts_refuses_the_token(desk: Desk) -> None:
    public = biscuit_auth.PublicKey.from_bytes(desk.keys.signing_key().key.public, biscuit_auth.Algorithm.Ed25519)
    authorizer = biscuit_auth.AuthorizerBuilder("allow if true").build(
        biscuit_auth.Biscuit.from_base64(desk.token(), public)
    )
    with pytest.raises(biscuit_auth.AuthorizationError):
        authorizer.authorize()


def grant_form(desk: Desk, **changes: Any) -> dict[str, Any]:
    return {"grant": {**desk.credential().grant.to_json(), **changes}, "key": desk.keys.signing_key().key.public.hex()}


@pytest.mark.parametrize(
    "change",
    [
        {"scope": "all"},
        {"tenant": None},
        {"expires_at": "never"},
        {"expires_at": True},
        {"budget": {"calls": -1}},
        {"capabilities": [{"Everything": {}}]},
        {"capabilities": "fs.read:/"},
        {"limits": {"wall_seconds": 0}},
        {"safety_floor": "none"},
        {"not_before": "1"},
        {"audience": 5},
    ],
)
def test_even_a_signed_grant_is_refused_when_it_is_not_one(desk: Desk, change: dict[str, Any]) -> None:
    first = "ringfence_grant({c}); check if ringfence_grants(1)"
    assert refused(desk, signed(desk, first, fact(grant_form(desk, **change)))) == "bad_token"
    desk.verifier.admit(signed(desk, first, fact(grant_form(desk))), CALL)


def test_a_signed_grant_that_claims_another_key_is_refused(desk: Desk) -> None:
    first = "ringfence_grant({c}); check if ringfence_grants(1)"
    other = {**grant_form(desk), "key": "00" * 32}
    assert refused(desk, signed(desk, first, fact(other))) == "bad_token"
    assert refused(desk, signed(desk, "ringfence_grant({c})", fact(grant_form(desk)))) == "bad_token"


def test_blocks_cannot_be_taken_off_swapped_or_moved_to_another_token(desk: Desk) -> None:
    one = desk.codec.attenuate(desk.token(calls=9), Narrowing(budget=Budget(calls=1)))
    other = desk.token(another(CALL, call_id="call-2"), calls=9)
    wide, narrow = unpacked(other), unpacked(one)
    for cut in range(8, len(narrow), 3):
        for content in (wide[:cut] + narrow[cut:], narrow[:cut] + wide[cut:]):
            if content not in (wide, narrow):
                assert refused(desk, packed(content)) in REFUSALS


def test_a_token_with_more_blocks_than_we_append_is_refused(desk: Desk) -> None:
    token = desk.token()
    for _ in range(8):
        token = appended(desk, token, NARROW, fact({}))
    assert refused(desk, token) == "bad_token"


# --- around it ---


def _multiplying(step: int) -> tuple[dict[str, Any], ...]:
    """Return capabilities none of which covers another, so that two such lists meet in all their pairs."""
    return tuple({"FsRead": {"path": "work", "only": [f"work/*{step}*{number}*"]}} for number in range(64))


@pytest.mark.timeout(30)
def test_narrowings_that_multiply_are_refused_before_they_are_worked_out(desk: Desk) -> None:
    # 64 of a kind, seven times over, are 64**7: whoever holds a grant could have a host think about it for ever
    token = desk.token()
    once = read_narrowing({"capabilities": list(_multiplying(0))})
    with pytest.raises(InvalidRequest) as told:  # whoever narrows with our own tool is told at once
        desk.codec.attenuate(desk.codec.attenuate(token, once), read_narrowing({"capabilities": list(_multiplying(1))}))
    assert told.value.reason == "invalid_capability"
    for step in range(7):
        token = appended(desk, token, NARROW, fact({"capabilities": list(_multiplying(step))}))
    assert refused(desk, token) == "bad_token"


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "form",
    [
        {"capabilities": [{"NetHttp": {"host": "h", "methods": ["GET"], "paths": [f"/{n}" for n in range(5000)]}}]},
        {"capabilities": [{"FsRead": {"path": "work", "only": [f"work/*{n}" for n in range(2000)]}}]},
        {"denials": {"paths": [f"work/{n}" for n in range(2000)]}},
    ],
)
def test_a_narrowing_of_many_parts_is_refused_before_they_are_compared(desk: Desk, form: dict[str, Any]) -> None:
    token = appended(desk, desk.token(), NARROW, fact(form))
    assert len(token) <= MAX_CHARACTERS
    assert refused(desk, token) == "bad_token"


def test_a_panic_inside_the_library_is_a_bad_token(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    def panic(_: str) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    class Panicking:
        from_base64 = staticmethod(panic)

    monkeypatch.setattr(biscuit_auth, "UnverifiedBiscuit", Panicking)
    assert refused(desk, "AAAA") == "bad_token"


def test_a_refusal_says_nothing_that_could_be_presented(desk: Desk, token: str) -> None:
    for bad in (token[:-4], token[:-1] + ("A" if token[-1] != "A" else "B"), "Q" * 100):
        with pytest.raises(Denied) as caught:
            desk.verifier.admit(bad, CALL)
        error: RingfenceError = caught.value
        said = json.dumps([str(error), error.fix, error.details])
        assert not any(bad[at : at + 24] in said for at in range(0, len(bad), 8) if len(bad[at : at + 24]) == 24)


def test_neither_importing_ringfence_nor_its_unsigned_grants_loads_the_token_library() -> None:
    code = (
        "import sys, ringfence; from ringfence.authority.credential import ProposedCall; "
        "from ringfence.authority.policy import BUILT_IN; from ringfence.grants.issuer import LocalIssuer; "
        "from ringfence.grants.biscuit import BiscuitCodec; BiscuitCodec(); "
        "from ringfence.clock import SystemClock; from ringfence.identifiers import TimeOrdered; "
        "LocalIssuer(SystemClock(), TimeOrdered()).issue(BUILT_IN, ProposedCall('t', 's', 'code_run', 'c')); "
        "print([name for name in sys.modules if 'biscuit' in name and not name.startswith('ringfence')])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment)
    assert done.stdout == "[]\n"
