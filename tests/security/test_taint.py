"""Attack: read what a stranger wrote, lose the mark it leaves, and carry something out all the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.hostile_web import Names, Server, Wire

from ringfence import SandboxManager, wiring
from ringfence.authority.caller import NOBODY_ELSE, Caller
from ringfence.authority.levels import RiskLevel
from ringfence.authority.policy_reader import load_policy
from ringfence.clock import SystemClock
from ringfence.database.address import open_database
from ringfence.egress.settings import NetSettings
from ringfence.errors import CapabilityBlocked, Denied, InternalError, RingfenceError
from ringfence.evidence.correlation import Correlation
from ringfence.evidence.replay import Agreement, Replay
from ringfence.guard.consent import Consent, Source, request_hash
from ringfence.guard.policy_guard import PolicyGuard
from ringfence.identifiers import TimeOrdered
from ringfence.journal.reader import reading
from ringfence.journal.taints import TaintsInDatabase
from ringfence.operation import CodeRun, Language
from ringfence.operation.brokered import (
    BrowserExtract,
    BrowserNav,
    BrowserScreenshot,
    BrowserType,
    FsWrite,
    NetHttp,
)
from ringfence.operation.form import Operation
from ringfence.operation.workspace_proposals import WsCommit
from ringfence.orchestrator.pipeline import Orchestrator
from ringfence.outcome import BrokerOutcome, ExecutionResult, Outcome, Status
from ringfence.ports import ExecCtx
from ringfence.risk.assessment import RiskAssessment
from ringfence.testing import MemorySink, ScriptedExecutor, orchestrator_over, standard_profile

pytestmark = [pytest.mark.guarantee(36), pytest.mark.needs("native")]

READ = NetHttp("GET", "http://web.example.com/")
SEND = NetHttp("POST", "http://web.example.com/", {}, b"what was read")
POLICY = """
policies:
  default:
    network_access: true
    allowed_domains: [web.example.com]
    allowed_methods: [GET, POST]
    open_ports: [8080]
secrets: {TOKEN: {}}
"""
TAINT = "taint: {send: ask, code_network: deny, secret_use: ask, port_open: ask, commit: ask}\n"


@dataclass
class House:
    """An engine over a home, as every process that uses the home builds it."""

    engine: wiring.Engine
    home: Path

    async def do(
        self,
        operation: Operation,
        session: str | None = "s1",
        caller: Caller = NOBODY_ELSE,
        consent: Consent | None = None,
        **known: str,
    ) -> Outcome:
        profile = self.engine.authority.profile(operation, call_id="call", caller=caller)
        if isinstance(operation, CodeRun):
            operation = replace(operation, session_id=session)
        outcome: Outcome = await self.engine.orchestrator.run(
            operation,
            profile,
            session_id=session,
            correlation=Correlation(**known),
            consent=consent,
        )
        return outcome

    async def refusal(self, operation: Operation, session: str | None = "s1", **more: Any) -> RingfenceError:
        with pytest.raises(RingfenceError) as caught:
            await self.do(operation, session, **more)
        return caught.value

    async def is_tainted(self, session: str | None = "s1", **more: Any) -> bool:
        try:
            await self.do(SEND, session, **more)
        except Denied as refused:
            if (refused.reason, refused.details["rule"]) == ("consent_required", "taint"):
                return True
            raise
        return False

    def records(self, kind: str) -> list[dict[str, Any]]:
        with reading(open_database(self.home)) as reader:
            texts = [place.text or "" for log in reader.logs() for place in reader.records(log.number)]
        return [members for members in map(json.loads, texts) if members["type"] == kind]


class Houses:
    def __init__(self, server: Server, directory: Path) -> None:
        self.server, self.home, self.policy = server, directory / "home", directory / "policy.yaml"
        self._built: list[House] = []
        self.says(POLICY + TAINT)

    def says(self, policy: str) -> None:
        self.policy.write_text(policy)

    def build(self, net: NetSettings | None = None) -> House:
        net = net or NetSettings(dial=Wire(self.server), lookup=Names())
        house = House(wiring.build(wiring.Settings(self.home, policy_file=self.policy, net=net)), self.home)
        self._built.append(house)
        return house

    def close(self) -> None:
        for house in self._built:
            house.engine.close()


@pytest.fixture
def houses(tmp_path: Path) -> Iterator[Houses]:
    server = Server()
    built = Houses(server, tmp_path)
    yield built
    built.close()
    server.close()


@pytest.fixture
def house(houses: Houses) -> House:
    return houses.build()


async def test_who_reads_may_not_send_afterwards_and_is_told_why(house: House, houses: Houses) -> None:
    assert not await house.is_tainted()  # which reached a server, and so leaves a mark itself
    read = await house.do(READ, "s2")
    assert read.tainted is not None
    assert (read.tainted.by, read.tainted.reached) == (read.exec_id, "web.example.com")
    requests = len(houses.server.requests)
    refused = await house.refusal(SEND, "s2")
    assert isinstance(refused, Denied)
    assert refused.reason == "consent_required"
    assert read.exec_id in str(refused)
    assert len(houses.server.requests) == requests
    (mark,) = [each for each in house.records("session.tainted") if each.get("session_id") == "s2"]
    assert (mark["exec_id"], mark["reached"], mark["tenant"]) == (read.exec_id, "web.example.com", "local")
    (denied,) = house.records("decision.denied")
    assert denied["tainted"] == read.tainted.to_dict()
    assert {"rule": "taint", "decision": "ask", "code": Denied.code, "reason": "consent_required"} in denied["answers"]


async def test_without_the_section_nobody_is_marked_and_a_mark_changes_nothing(house: House, houses: Houses) -> None:
    houses.says(POLICY)
    outcome = await house.do(READ)
    assert outcome.tainted is None
    assert not await house.is_tainted()
    assert not house.records("session.tainted")


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (CodeRun(Language.PYTHON, "1", domains=("web.example.com",)), CapabilityBlocked),
        (CodeRun(Language.PYTHON, "1", ports=(8080,)), Denied),
        (NetHttp("GET", "https://web.example.com/", {"Authorization": "${secret:TOKEN}"}), Denied),
        (WsCommit("ex_1"), Denied),
    ],
)
async def test_every_way_out_is_the_policys_to_name(
    house: House, operation: Operation, error: type[RingfenceError]
) -> None:
    await house.do(READ)
    refused = await house.refusal(operation)
    assert (type(refused), refused.details["rule"]) == (error, "taint")
    await house.do(FsWrite("work/inside", b"stays here"))
    await house.do(READ)  # which the policy does not name


async def test_a_person_can_agree_to_the_very_call_and_to_nothing_else(house: House, houses: Houses) -> None:
    await house.do(READ)
    named = [request_hash(READ, "s1"), request_hash(SEND, "s2"), request_hash(SEND)]
    for useless in (Consent(Source.SESSION), Consent(Source.POLICY), *(Consent(Source.CALL, name) for name in named)):
        assert (await house.refusal(SEND, consent=useless)).reason == "consent_required"
    await house.do(SEND, consent=Consent(Source.CALL, request_hash(SEND, "s1")))
    assert houses.server.requests[-1][1].endswith(b"what was read")


async def test_a_mark_is_lost_by_no_restart_and_seen_by_every_process(house: House, houses: Houses) -> None:
    beside = houses.build()
    assert not await beside.is_tainted("other")
    await house.do(READ)
    assert await beside.is_tainted()
    house.engine.close()
    assert await houses.build().is_tainted()


DYING = """
import asyncio, os, sys
from pathlib import Path
from ringfence import wiring
from ringfence.egress.settings import NetSettings
from ringfence.operation.brokered import NetHttp

async def dial(*_):
    os.kill(os.getpid(), 9)

def names(host):
    return ["93.184.216.34"]

engine = wiring.build(wiring.Settings(Path(sys.argv[1]), policy_file=Path(sys.argv[2]),
                                      net=NetSettings(dial=dial, lookup=names)))
operation = NetHttp("GET", "http://web.example.com/")
profile = engine.authority.profile(operation, call_id="call")
asyncio.run(engine.orchestrator.run(operation, profile, session_id="s1"))
"""


async def test_a_process_that_dies_before_the_content_is_here_has_left_its_mark(houses: Houses) -> None:
    words = [sys.executable, "-c", DYING, str(houses.home), str(houses.policy)]
    died = await asyncio.to_thread(subprocess.run, words, capture_output=True, timeout=60, check=False, env=os.environ)
    assert died.returncode == -signal.SIGKILL, died.stderr
    house = houses.build()
    assert await house.is_tainted()
    assert not await house.is_tainted("other")


async def test_giving_up_the_fetch_takes_nothing_back(houses: Houses) -> None:
    dialled = asyncio.Event()

    async def dial(*_: object) -> Any:
        dialled.set()
        await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(houses.build(NetSettings(dial=dial, lookup=Names())).do(READ))
    await dialled.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await houses.build().is_tainted()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param({"session": "s1"}, {"session": None}, id="leave out the session"),
        pytest.param({"session": None}, {"session": "s2"}, id="read without a session"),
        pytest.param({"session": "s1"}, {"session": None, "conversation_id": "c2"}, id="name a conversation instead"),
        pytest.param({"session": "s1", "conversation_id": "c1"}, {"session": "s2", "conversation_id": "c1"}, id="new"),
        pytest.param({"session": "s1"}, {"session": None, "project_id": "s1"}, id="as a skill that sees no files"),
        pytest.param({"session": "s1"}, {"session": "s1", "caller": Caller("local", "another")}, id="as somebody else"),
        pytest.param({"session": "s1"}, {"session": "s1", "conversation_id": "c9"}, id="in another conversation"),
    ],
)
async def test_no_name_that_is_changed_or_left_out_loses_the_mark(
    house: House, first: dict[str, Any], then: dict[str, Any]
) -> None:
    await house.do(READ, **first)
    assert await house.is_tainted(**then)


async def test_another_session_is_another_unless_the_policy_follows_the_subject(house: House, houses: Houses) -> None:
    await house.do(READ, "s1")
    assert not await house.is_tainted("s2", caller=Caller("local", "somebody"))
    houses.says(POLICY + TAINT.replace("{", "{reach: subject, "))
    assert await house.is_tainted("s3")
    assert not await house.is_tainted("s4", caller=Caller("local", "a third"))
    houses.says(POLICY + TAINT.replace("{", "{reach: tenant, "))
    assert await house.is_tainted("s5", caller=Caller("local", "a fourth"))
    assert not await house.is_tainted("s1", caller=Caller("acme", "local"))


async def test_code_with_a_way_out_leaves_a_mark_whatever_it_does_with_it(house: House) -> None:
    reaching = CodeRun(Language.PYTHON, "print(1)", domains=("web.example.com",))
    outcome = await house.do(reaching)
    assert isinstance(outcome, ExecutionResult)
    assert (outcome.status, outcome.tainted and outcome.tainted.by) == (Status.SUCCEEDED, outcome.exec_id)
    assert await house.is_tainted()
    plain = await house.do(CodeRun(Language.PYTHON, "print(1)"))
    assert plain.tainted == outcome.tainted


async def test_what_stays_open_is_judged_as_what_it_may_be_told_later(houses: Houses) -> None:
    async with SandboxManager("s1", home=houses.home, policy_file=houses.policy, pool_size=0) as manager:
        with pytest.raises(CapabilityBlocked, match="code_network") as refused:
            await manager.start_process("cat", allow_domains=["web.example.com"])
        assert refused.value.reason == "tainted"
        with pytest.raises(CapabilityBlocked, match="code_network"):
            await manager.start_interpreter(allow_domains=["web.example.com"])
        with pytest.raises(Denied, match="whatever it is told while it runs"):
            await manager.start_process("cat", ports=[8080])
        plain = await manager.start_process("echo hello")
        assert (await plain.wait()).tainted is None
    assert not await houses.build().is_tainted()


async def test_two_who_read_at_once_leave_one_mark_and_the_first_stays(house: House) -> None:
    outcomes = await asyncio.gather(*(house.do(READ) for _ in range(8)))
    later = await house.do(READ)
    assert later.tainted in [outcome.tainted for outcome in outcomes]
    with open_database(house.home).transaction() as cursor:
        rows = cursor.execute("SELECT name, exec_id FROM taint_mark WHERE name = 'project:s1'").fetchall()
    assert [(row[0], row[1]) for row in rows] == [("project:s1", later.tainted and later.tainted.by)]


async def test_decisions_are_made_again_from_their_records(house: House, houses: Houses) -> None:
    await house.do(READ)
    await house.refusal(SEND)
    decisions = [*house.records("exec.begin"), *house.records("decision.denied")]
    documents = {load_policy(houses.policy.read_bytes()).policy_version_hash: houses.policy.read_text()}
    with reading(open_database(house.home)) as reader:
        replay = Replay(lambda digest: documents.get(digest) or reader.document(digest))
        agreed = [replay.rederive(record).agreement for record in decisions]
        assert agreed == [Agreement.SAME, Agreement.SAME]
        harsher = load_policy((POLICY + "taint: {send: deny}\n").encode())
        assert Replay(reader.document, harsher).rederive(decisions[1]).agreement is Agreement.DIFFERS
        houses.says(POLICY)
        await house.do(SEND, "s7")
        unknown = house.records("exec.begin")[-1]
        assert "tainted" not in unknown
        assert Replay(reader.document, harsher).rederive(unknown).agreement is Agreement.CANNOT_TELL


async def test_a_pipeline_that_keeps_no_marks_refuses_a_policy_that_needs_them() -> None:
    pipeline = orchestrator_over(ScriptedExecutor())
    operation = CodeRun(Language.PYTHON, "1")
    profile = standard_profile(operation, policy=load_policy(b"taint: {}"))
    with pytest.raises(InternalError, match="keeps no marks"):
        await pipeline.run(operation, profile)


class Page:
    """Stands for a browser: what is asked here is what the pipeline does around it."""

    def capability_domain(self) -> str:
        return "browser"

    async def execute(self, ctx: ExecCtx, operation: Any) -> BrokerOutcome:
        await ctx.begun()
        return BrokerOutcome(operation.kind)


BROWSING = """
policies:
  default: {net_mode: allowlist, allowed_domains: [web.example.com], browser_scope: [open, extract, screenshot, type]}
mode: never-ask
taint: {send: ask, fetch: allow}
"""


async def test_every_operation_of_a_browser_marks_and_what_it_types_is_sending(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    marks, policy = TaintsInDatabase(database), load_policy(BROWSING.encode())
    guard = PolicyGuard(lambda _code, language: RiskAssessment(RiskLevel.SAFE, language))
    pipeline = Orchestrator(
        {"browser": Page}, TimeOrdered(), guard, SystemClock(), _no_budget, MemorySink(), taints=lambda: marks
    )
    looks: tuple[Operation, ...] = (BrowserNav("https://web.example.com/"), BrowserExtract(), BrowserScreenshot())
    for number, operation in enumerate(looks):
        session = f"s{number}"
        outcome = await pipeline.run(operation, standard_profile(operation, policy=policy), session_id=session)
        assert outcome.tainted is not None
        assert outcome.tainted.by == outcome.exec_id
        typed = BrowserType("#q", "what was read")
        with pytest.raises(Denied) as refused:
            await pipeline.run(typed, standard_profile(typed, policy=policy), session_id=session)
        assert (refused.value.reason, refused.value.details["rule"]) == ("consent_required", "taint")
    database.close()


def _no_budget() -> Any:
    raise AssertionError("no policy here has a budget")
