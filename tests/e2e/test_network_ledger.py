"""What the documents ask of the network broker, through the public names: real sockets behind names of our own.

The policy is 001 §3.3 as it is printed, with the host names changed to those of the tests' internet.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import ringfence as command
from tests.hostile_web import OTHER, PUBLIC, Names, Server, Wire

from ringfence import BrokerOutcome, Limits, RingfenceError, SandboxConfig, SandboxManager
from ringfence.egress.settings import NetSettings
from ringfence.operation.brokered import NetHttp

DOCUMENT = """
network:
  default: none
  allowlist:
    enabled: true
    domains:
      - web.example.com
      - other.example.net
      - "*.githubusercontent.com"
    ips: []
  denylist:
    enabled: true
    domains:
      - "*.internal.*"
      - localhost
      - "127.*"
      - "10.*"
      - "192.168.*"
    ports:
      - 22   # SSH
      - 3306 # MySQL
      - 5432 # PostgreSQL
      - 6379 # Redis
"""
READING = DOCUMENT.replace("default: none", "default: safe_retrieval")
LISTED = DOCUMENT.replace("default: none", "default: allowlist") + (
    "policies: {default: {allowed_methods: [GET, HEAD, POST], allowed_ports: [80, 443, 22, 3306, 5432, 6379]}}\n"
)


class Outside:
    """A manager under a policy, with an internet of one server behind it."""

    def __init__(self, at: Path) -> None:
        self.at, self.server = at, Server()
        self.names = Names({"raw.githubusercontent.com": [PUBLIC], "githubusercontent.com": [PUBLIC]})
        self.wire = Wire(self.server)

    def manager(self, policy: str, **options: Any) -> SandboxManager:
        file = self.at / "policy.yaml"
        file.write_text(policy)
        net = NetSettings(lookup=self.names, dial=self.wire)
        config = SandboxConfig(home=self.at / "home", policy_file=file, pool_size=0, net=net, **options)
        return SandboxManager(config=config)

    async def ask(self, policy: str, url: str, method: str = "GET", **options: Any) -> BrokerOutcome:
        brought = {name: options.pop(name) for name in ("headers", "body") if name in options}
        async with self.manager(policy, **options) as held:
            return await held.perform(NetHttp(method, url, **brought))

    async def refusal(self, policy: str, url: str, method: str = "GET", **options: Any) -> tuple[str, str]:
        with pytest.raises(RingfenceError) as refused:
            await self.ask(policy, url, method, **options)
        return refused.value.code, refused.value.reason


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    made = Outside(tmp_path)
    yield made
    made.server.close()


BLOCKED, UNAVAILABLE, TIMEOUT = "SANDBOX.CAPABILITY_BLOCKED", "PROVIDER.UNAVAILABLE", "LLM.TIMEOUT"


async def test_a_listed_host_answers_and_no_packet_leaves_for_another(outside: Outside) -> None:
    assert (await outside.ask(READING, "http://web.example.com/")).out["status"] == 200
    assert (await outside.ask(READING, "http://raw.githubusercontent.com/")).out["status"] == 200
    outside.wire.dialled.clear()
    outside.names.asked.clear()
    for host in ("evil.test", "githubusercontent.com", "web.example.com.evil.test", PUBLIC):
        assert await outside.refusal(READING, f"http://{host}/") == (BLOCKED, "domain")
    assert outside.names.asked == outside.wire.dialled == []


async def test_an_address_is_reached_only_where_it_is_listed_itself(outside: Outside) -> None:
    listed = READING.replace("ips: []", f"ips: ['{OTHER}']")
    assert (await outside.ask(listed, f"http://{OTHER}/")).out["address"] == OTHER
    assert await outside.refusal(listed, f"http://{PUBLIC}/") == (BLOCKED, "domain")


async def test_methods_and_ports_are_those_that_are_listed(outside: Outside) -> None:
    assert await outside.refusal(LISTED, "http://web.example.com/", "DELETE") == (BLOCKED, "method")
    assert await outside.refusal(LISTED, "http://web.example.com:8080/") == (BLOCKED, "port")
    posted = await outside.ask(LISTED, "http://web.example.com/echo", "POST", headers={"X-A": "b"}, body=b"data")
    assert (posted.content or b"").startswith(b"POST /echo HTTP/1.1")


@pytest.mark.parametrize("port", [22, 3306, 5432, 6379])
async def test_a_denied_port_is_closed_on_an_allowed_name(outside: Outside, port: int) -> None:
    assert await outside.refusal(LISTED, f"http://web.example.com:{port}/") == (BLOCKED, "port")
    assert outside.wire.dialled == []


async def test_deny_lists_hold_for_names_and_for_what_they_resolve_to(outside: Outside) -> None:
    everywhere = READING.replace("- web.example.com", '- "*"')
    for host in ("db.internal.corp", "localhost"):
        assert await outside.refusal(everywhere, f"http://{host}/") == (BLOCKED, "blacklist")
    for address in ("127.0.0.1", "10.1.2.3", "192.168.1.1", "172.16.9.9", "169.254.169.254", "::1", "::ffff:10.0.0.1"):
        outside.names.records["pretty.example.org"] = [address]
        assert await outside.refusal(everywhere, "http://pretty.example.org/") == (BLOCKED, "private_address")
    assert outside.wire.dialled == []


async def test_the_denied_networks_are_the_operators_to_extend(outside: Outside) -> None:
    more = READING.replace("    ports:", f"    networks: [private, {PUBLIC}/32]\n    ports:")
    assert await outside.refusal(more, "http://web.example.com/") == (BLOCKED, "private_address")
    assert (await outside.ask(more, "http://other.example.net/")).out["address"] == OTHER


async def test_every_step_of_a_redirect_is_checked(outside: Outside) -> None:
    good = await outside.ask(READING, "http://web.example.com/to?to=http%3A//other.example.net/")
    assert [hop["address"] for hop in good.out["hops"]] == [PUBLIC, OTHER]
    for to in ("http%3A//evil.test/", "http%3A//10.0.0.5/", "file%3A///etc/passwd", "http%3A//web.example.com%3A22/"):
        code, reason = await outside.refusal(READING, f"http://web.example.com/to?to={to}")
        assert (code, reason) in {(BLOCKED, "redirect"), (BLOCKED, "port")}
    assert set(outside.wire.dialled) == {PUBLIC, OTHER}


async def test_the_type_of_an_answer_is_one_that_is_listed(outside: Outside) -> None:
    text = READING + "policies: {default: {mime_allow: ['text/*']}}\n"
    assert (await outside.ask(text, "http://web.example.com/")).out["media_type"] == "text/plain"
    assert await outside.refusal(text, "http://web.example.com/json") == (BLOCKED, "mime")


async def test_a_body_is_no_larger_than_one_operation_may_bring(outside: Outside) -> None:
    limits = Limits(max_bytes_in=1000)
    assert (await outside.ask(READING, "http://web.example.com/large?size=1000", limits=limits)).out["bytes"] == 1000
    refused = await outside.refusal(READING, "http://web.example.com/large?size=1001", limits=limits)
    assert refused == (BLOCKED, "too_large")


async def test_the_default_answer_is_a_digest_with_the_beginning_of_the_content(outside: Outside) -> None:
    kept_back = READING + "policies: {default: {output_inline: false}}\n"
    for policy, preview in ((READING, "hello"), (kept_back, "")):
        outcome = await outside.ask(policy, "http://web.example.com/")
        digest = outcome.out["digest"]
        assert base64.b64decode(digest["b64"]) == hashlib.sha256(b"hello").digest()
        assert (outcome.out["bytes"], outcome.out["preview"]) == (5, preview)
        assert (outcome.content is None) == (policy is kept_back)


async def test_the_client_behind_the_broker_can_be_another(outside: Outside) -> None:
    await outside.ask(READING, "http://web.example.com/echo")
    assert outside.wire.dialled == [PUBLIC]
    assert outside.server.requests[0][1].startswith(b"GET /echo HTTP/1.1\r\nHost: web.example.com\r\n")


async def test_bytes_are_charged_while_they_move_and_a_spent_budget_refuses(outside: Outside) -> None:
    spare = READING + "budgets: {tenant: {local: {bytes_in: 4000}}}\n"
    async with outside.manager(spare) as held:
        first = await held.fetch_url("http://web.example.com/large?size=3000")
        assert first.used.bytes_in is not None
        with pytest.raises(RingfenceError) as cut:  # what is left is the most that may come
            await held.fetch_url("http://web.example.com/large?size=3000")
        assert cut.value.reason == "too_large"
        for _ in range(5):
            with pytest.raises(RingfenceError) as over:
                await held.fetch_url("http://web.example.com/endless")
            if over.value.code == "QUOTA.BUDGET_EXCEEDED":
                break
        assert (over.value.code, over.value.reason) == ("QUOTA.BUDGET_EXCEEDED", "bytes_in")


async def test_what_the_network_does_not_give_has_its_codes(outside: Outside) -> None:
    assert await outside.refusal(READING, "http://none.githubusercontent.com/") == (UNAVAILABLE, "name_resolution")
    outside.server.port = 1
    assert await outside.refusal(READING, "http://web.example.com/") == (UNAVAILABLE, "connect_failed")


async def test_an_answer_that_does_not_come_is_a_timeout(outside: Outside) -> None:
    code, _ = await outside.refusal(READING, "http://web.example.com/drip", limits=Limits(wall_seconds=0.5))
    assert code == TIMEOUT


async def test_the_levels_are_a_ladder(outside: Outside) -> None:
    url = "http://web.example.com/echo"
    private = {"headers": {"X": "y"}}
    levels = ("none", "safe_retrieval", "allowlist", "unrestricted")
    found = {}
    for level in levels:
        policy = LISTED.replace("default: allowlist", f"default: {level}")
        reads = "read" if await _works(outside, policy, url) else "nothing"
        writes = "write" if await _works(outside, policy, url, "POST", **private) else ""
        found[level] = f"{reads} {writes}".strip()
    assert found == {"none": "nothing", "safe_retrieval": "read", "allowlist": "read write", "unrestricted": "nothing"}
    unrestricted = LISTED.replace("default: allowlist", "default: unrestricted")
    assert await outside.refusal(unrestricted, url) == ("SANDBOX.PERMISSION_DENY", "consent_required")


async def _works(outside: Outside, policy: str, url: str, method: str = "GET", **brought: Any) -> bool:
    try:
        return bool((await outside.ask(policy, url, method, **brought)).out["status"] == 200)
    except RingfenceError:
        return False


async def test_reading_the_internet_takes_nothing_along(outside: Outside) -> None:
    for brought in ({"headers": {"X": "y"}}, {"body": b"x"}):
        assert (await outside.refusal(READING, "http://web.example.com/", **brought))[0] == BLOCKED
    assert (await outside.refusal(READING, "http://web.example.com/", "POST"))[0] == BLOCKED
    assert outside.wire.dialled == []


async def test_a_name_that_changes_its_mind_is_held_to_its_first_word(outside: Outside) -> None:
    everywhere = READING.replace("- web.example.com", '- "*"')
    outside.names.records["flip.example.org"] = lambda count: [PUBLIC] if count == 1 else ["127.0.0.1"]
    assert (await outside.ask(everywhere, "http://flip.example.org/")).out["address"] == PUBLIC
    assert outside.wire.dialled == [PUBLIC]


async def test_the_audit_says_where_and_how_much_and_nothing_of_what(outside: Outside) -> None:
    outcome = await outside.ask(READING, "http://web.example.com/to?to=/secret%3Ftoken%3Dhunter22")
    assert outcome.content == b"CANARY-CREDENTIALS"
    home = outside.at / "home"
    told = command(home, "evidence", "export", "--format", "audit-json")
    lines = [json.loads(line) for line in told.stdout.splitlines() if line.strip()]
    (line,) = [each for each in lines if each.get("tool") == "http_request"]
    assert line["network_bytes_sent"] == outcome.used.bytes_out
    assert line["network_bytes_recv"] == outcome.used.bytes_in
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    for secret in (b"CANARY", b"hunter22"):
        assert secret not in kept
    shown = command(home, "evidence", "show", outcome.exec_id).stdout
    assert PUBLIC in shown or PUBLIC.encode() in kept


def test_the_contract_of_safe_retrieval_is_written_rule_by_rule_and_each_has_its_test() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "network.md").read_text()
    tests = "".join(path.read_text() for path in (root / "tests" / "security").glob("test_retrieval_*.py"))
    for number in range(1, 38):
        assert f"\n| {number} | " in page
        assert f"def test_rule_{number}_" in tests
