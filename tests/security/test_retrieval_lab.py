"""The same attacks on a wire: real names, real addresses, and a canary on each that nobody may be sent to.

Two network namespaces, one with every address an attacker wants to reach and a DNS server of their own. The requests
are a manager's, through the system's resolver. `reached` is what the canaries saw: a TCP handshake is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests import net_lab
from tests.hostile_web import OTHER, PUBLIC
from tests.net_lab import CANARIES, CLIENT, CLIENT6, PUBLIC6, Lab

pytestmark = [pytest.mark.guarantee(28), pytest.mark.needs("net_lab")]

ANY = """
network:
  default: safe_retrieval
  allowlist: {enabled: true, domains: ["*"%s]}
"""
READING = ANY % ""
OWN = ("127.0.0.1", "::1", CLIENT, CLIENT6)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with net_lab.running_lab(tmp_path_factory.mktemp("lab")) as running:
        yield running


def literal(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def named(address: str) -> str:
    """Return a name that the lab's DNS server answers with `address`."""
    import ipaddress

    if ":" in address:
        return f"sixteen-{ipaddress.ip_address(address).packed.hex()}.x.test"
    return f"a-{address.replace('.', '-')}.x.test"


def test_the_canaries_can_be_reached_by_whoever_is_not_stopped(lab: Lab) -> None:
    """Without this, silence would prove nothing: the private network opened by hand answers on the same wire."""
    seen = lab.raw([address for address in (*CANARIES, *OWN) if not address.startswith("224.")])
    assert set(seen) == {address for address in (*CANARIES, *OWN) if not address.startswith("224.")}


def test_what_is_public_is_reached_by_name_and_by_ipv6_and_with_tls(lab: Lab) -> None:
    assert lab.fetch("http://web.x.test/", READING)["reached"] == [PUBLIC]
    assert lab.fetch(f"http://{named(PUBLIC6)}/", READING)["content"] == "hello"
    secure = lab.fetch("https://web.example.com/", READING)
    assert (secure["content"], secure["out"]["address"]) == ("hello", PUBLIC)
    assert lab.fetch("https://web.x.test/", READING)["reason"] == "tls"


@pytest.mark.parametrize("address", [*CANARIES, *OWN])
def test_no_canary_is_reached_by_name_by_literal_or_by_redirect(lab: Lab, address: str) -> None:
    granted = ANY % f', "{literal(address)}"'
    for url in (
        f"http://{named(address)}/",
        f"http://{literal(address)}/",
        f"http://web.x.test/to?to={quote(f'http://{named(address)}/', safe='')}",
        f"http://web.x.test/to?to={quote(f'http://{literal(address)}/', safe='')}",
        f"http://web.x.test/to?to={quote(f'//{literal(address)}:80/', safe='')}&status=307",
    ):
        answer = lab.fetch(url, granted)
        assert "code" in answer, answer
        assert set(answer["reached"]) <= {PUBLIC}, url


@pytest.mark.parametrize(
    "host",
    [
        "2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "0", "0xa000005", "10.5", "167772165",
        "[::ffff:7f00:1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:ffff:a00:5]", "[::127.0.0.1]", "[::1%25lo]", "localhost",
        "LOCALHOST.", "x.localhost", "ip6-localhost", "\uff11\uff12\uff17.0.0.1", "127\u30020\u30020\u30021",
        "web.x.test@127.0.0.1",
        "127.0.0.1\\@web.x.test", "127.0.0.1%2f@web.x.test", "web.x.test#@127.0.0.1", "127.0.0.1%00.web.x.test",
    ],
)  # fmt: skip
def test_no_spelling_of_this_host_or_its_neighbour_reaches_it(lab: Lab, host: str) -> None:
    for url in (f"http://{host}/secret", f"http://web.x.test/to?to={quote(f'http://{host}/secret', safe='')}"):
        answer = lab.fetch(url, READING)
        assert "CANARY" not in answer.get("content", "")
        assert set(answer["reached"]) <= {PUBLIC}


def test_a_name_that_rebinds_is_reached_where_it_was_judged_or_not_at_all(lab: Lab) -> None:
    outward = PUBLIC.replace(".", "-")
    for turn in range(4):
        # each address is given `turn` times before it changes: whichever lookup a second one would be, it is tried
        for inward in ("10-0-0-5", "127-0-0-1", "169-254-169-254"):
            host = f"flip-{turn}-{outward}-{inward}.t{turn}.test"
            for _ in range(turn + 2):
                answer = lab.fetch(f"http://{host}/", READING)
                assert set(answer["reached"]) <= {PUBLIC}
                redirected = lab.fetch(f"http://{host}/to?to=/", READING)
                assert set(redirected["reached"]) <= {PUBLIC}


def test_a_name_with_a_good_and_a_bad_address_reaches_neither(lab: Lab) -> None:
    both = f"both-{PUBLIC.replace('.', '-')}-10-0-0-5"
    turned = f"both-10-0-0-5-{PUBLIC.replace('.', '-')}"
    for host in (both, turned):
        answer = lab.fetch(f"http://{host}.x.test/", READING)
        assert (answer["reason"], answer["reached"]) == ("private_address", [])


def test_an_alias_of_a_private_name_reaches_nobody(lab: Lab) -> None:
    assert lab.fetch("http://alias.y.test/", READING)["reached"] == []


def test_a_maze_of_redirects_ends(lab: Lab) -> None:
    path = "/"
    for _ in range(12):
        path = f"/to?to={quote(path, safe='')}"
    answer = lab.fetch(f"http://web.x.test{path}", READING)
    assert (answer["reason"], answer["reached"]) == ("redirect", [PUBLIC])


def test_only_what_was_listed_is_reached_and_nothing_is_even_looked_up_otherwise(lab: Lab) -> None:
    listed = READING.replace('"*"', f'web.x.test, "{OTHER}"')
    assert lab.fetch(f"http://{OTHER}/", listed)["reached"] == [OTHER]
    assert lab.fetch("http://a-93-184-216-35.x.test/", listed)["reached"] == []
    assert lab.fetch(f"http://{PUBLIC}/", listed)["reached"] == []
    asked = lab.fetch("http://flip-9-93-184-216-34-10-0-0-5.exfil.test/", listed)
    assert asked["looked_up"] == [], "a name carries data to whoever owns its domain"


def test_nothing_of_what_was_fetched_is_in_the_home(lab: Lab, tmp_path: Path) -> None:
    assert lab.fetch("http://web.x.test/secret", READING)["content"] == "CANARY-CREDENTIALS"
    assert lab.found_in_home("CANARY-CREDENTIALS") == []
