"""Whatever policy, grant and manifest say, and whatever is asked: what runs is within all three."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfence import wiring
from ringfence.authority.grant import Grant
from ringfence.authority.layers import OnExcess
from ringfence.authority.levels import NetMode
from ringfence.authority.manifest import Manifest
from ringfence.authority.policy import PolicySnapshot
from ringfence.authority.policy_reader import load_policy
from ringfence.authority.policy_view import PolicyView
from ringfence.authority.profile_builder import ProfileBuilder
from ringfence.capability.budget import Budget
from ringfence.capability.capabilities import Capabilities
from ringfence.capability.denials import PRIVATE_NETWORKS
from ringfence.capability.form import KINDS, parse
from ringfence.errors import RingfenceError
from ringfence.operation import CodeRun, Language
from ringfence.operation import brokered as op
from ringfence.operation import workspace as ws
from ringfence.operation.secret import SecretAsk
from ringfence.operation.workspace_proposals import WsPending
from ringfence.outcome import BrokerOutcome, ExecutionResult, Outcome, Status
from ringfence.ports import ExecCtx
from ringfence.testing import FrozenClock, orchestrator_over

TOOL = "t.x"
NOW = FrozenClock().now_ms()
DOMAINS = ("code", "fs", "workspace", "proposals", "tmp", "proc", "net.http", "browser")
PATHS = ("/workspace", "/workspace/inputs", "/workspace/work", "/workspace/work/a", "/workspace/**/*.txt")
POOL = tuple(
    parse(text)
    for text in (
        *(f"fs.{verb}:{path}" for verb in ("read", "write", "list") for path in PATHS),
        *(f"code.run:{language}" for language in Language),
        *(f"net.http:GET:{host}" for host in ("a.com", "*.a.com", "b.com")),
        *("secret.use:KEY", "secret.use:OTHER", "port.open:80", "port.open:8080", "fs.host:/opt", "sys.gpu:small"),
        *(
            "proc.exec:git",
            "proc.exec:ls",
            "tmp.use",
            "browser.use:open",
            "browser.use:click|extract|open|screenshot|type",
        ),
    )
)
ASKED: tuple[dict[str, Any], ...] = (
    *({"ports": ports} for ports in ((80,), (8080,), (80, 8080), (9000,))),
    *({"domains": hosts} for hosts in (("a.com",), ("*.a.com",), ("b.com", "a.com"), ("c.com",))),
    *({"secrets": (SecretAsk(name),)} for name in ("KEY", "OTHER", "THIRD")),
    {"secrets": (SecretAsk("KEY", lasting=True),)},
    {"env": {"A": "1"}},
    {"ports": (80,), "domains": ("a.com",), "secrets": (SecretAsk("KEY"),)},
)
OPERATIONS: tuple[Any, ...] = (
    *(
        kind(path)
        for kind in (op.FsRead, op.FsWrite, op.FsList, op.FsStat, op.FsMkdir, op.FsDelete)
        for path in ("inputs/x", "work/a/x.txt", "code/a/.env", "work/x.KEY", "../x", "/etc/passwd", "work/../../x", "")
    ),
    *(
        op.NetHttp(method, f"https://{host}/")
        for method in ("GET", "POST")
        for host in ("a.com", "x.a.com", "10.0.0.1")
    ),
    *(op.ProcExec(tool, ("--version",)) for tool in ("git", "ls", "bash", "/bin/ls", "ls; id")),
    *(CodeRun(language, "1") for language in Language),
    *(CodeRun(Language.PYTHON, "1", **asked) for asked in ASKED),
    op.NetHttp("GET", "https://a.com/v1/x", {"Authorization": "Bearer ${secret:KEY}"}),
    op.NetHttp("POST", "https://a.com/v2", {"X": "1"}, b"x"),
    op.NetHttp("GET", "http://a.com:8080/"),
    ws.WsSnapshot("l"),
    ws.WsReset(),
    ws.WsDiff(),
    ws.WsCheckout("r"),
    WsPending(),
    op.BrowserNav("https://a.com/"),
    op.BrowserNav("http://127.0.0.1/"),
    op.BrowserExtract("p", "links"),
    op.BrowserScreenshot(width=10_000, height=10_000),
    op.BrowserClick("a"),
    op.BrowserType("input", "x"),
    op.BrowserClose(),
    op.TmpAlloc(1),
    op.TmpFree("x"),
)
ALL = Capabilities(item for item in POOL if item.name not in ("fs.host", "sys.gpu"))
few = st.frozensets(st.sampled_from(POOL), max_size=12)
# what is allowed by nobody runs nowhere, and shows nothing: half of them give all but a few
some = few.map(Capabilities) | few.map(lambda away: Capabilities(item for item in ALL if item not in away))
WIDE: dict[str, Any] = {
    "network_access": True,
    "net_mode": "allowlist",
    "allowed_domains": ["a.com", "*.a.com", "b.com"],
    "allowed_commands": ["git", "ls"],
    "browser_scope": ["open", "extract", "screenshot", "click", "type"],
    "open_ports": [80, 8080],
}
scopes = st.fixed_dictionaries(
    {},
    optional={
        "network_access": st.booleans(),
        "supported_languages": st.lists(st.sampled_from([str(each) for each in Language]), unique=True),
        "allowed_paths": st.lists(st.sampled_from(PATHS), unique=True),
        "denied_paths": st.lists(st.sampled_from(["/workspace/**/*.key", "/workspace/work/a", "**/.env"]), unique=True),
        "allowed_domains": st.lists(st.sampled_from(["a.com", "*.a.com", "b.com"]), unique=True),
        "denied_domains": st.lists(st.sampled_from(["x.a.com", "b.*"]), unique=True),
        "allowed_commands": st.lists(st.sampled_from(["git", "ls"]), unique=True),
        "denied_commands": st.lists(st.sampled_from(["git --version", "ls"]), unique=True),
        "filesystem_access": st.sampled_from(["none", "workspace_only", "host"]),
        "host_paths": st.just(["/opt"]),
        "net_mode": st.sampled_from(["none", "safe_retrieval", "allowlist", "unrestricted"]),
        "allowed_methods": st.lists(st.sampled_from(["GET", "POST"]), unique=True),
        "allowed_ports": st.lists(st.sampled_from([443, 8080]), unique=True),
        "allowed_url_paths": st.lists(st.sampled_from(["/v1/**", "/"]), unique=True),
        "denied_ports": st.lists(st.sampled_from([443, 8080]), unique=True),
        "denied_changes": st.lists(st.sampled_from(["**", "a/**"]), unique=True),
        "browser_scope": st.lists(st.sampled_from(["open", "extract", "click"]), unique=True),
        "open_ports": st.lists(st.sampled_from([80, 8080]), unique=True),
        "env_allow": st.lists(st.sampled_from(["A", "B*"]), unique=True),
        "risk_level": st.sampled_from(["low", "high", "critical"]),
    },
)
policies = st.builds(
    lambda mode, secrets, network, default, tool, role: {
        "mode": mode,
        "secrets": secrets,
        "network": network,
        "policies": {"default": default, "tools": {TOOL: tool}, "agent_roles": {"r": role | {"tools": [TOOL]}}},
    },
    st.sampled_from(["cowork", "auto", "never-ask"] * 3 + ["ask", "strict-ask"]),
    st.dictionaries(
        st.sampled_from(["KEY", "OTHER"]),
        st.sampled_from([{}, {"tools": [TOOL]}, {"roles": ["r"]}, {"tools": ["a.b"]}, {"scope": "conversation"}]),
    ),
    st.sampled_from(
        [
            {},
            {"default": "allowlist", "allowlist": {"domains": ["a.com"]}},
            {"denylist": {"domains": ["a.com"], "ports": [8080]}},
            {"denylist": {"networks": ["10.0.0.0/8"]}},
        ]
    ),
    *(scopes | st.just(WIDE), scopes | st.just({}), scopes | st.just({})),
)
OPEN: dict[str, Any] = {
    "secrets": {"KEY": {}},
    "policies": {"default": {"network_access": True, "allowed_domains": ["a.com"], "open_ports": [80]}},
}


@dataclass
class Recorder:
    """Carries out nothing, and remembers everything it was asked to."""

    domain: str
    ran: list[Any] = field(default_factory=list)

    def capability_domain(self) -> str:
        return self.domain

    async def execute(self, ctx: ExecCtx, operation: Any) -> Outcome:
        await ctx.begun()
        self.ran.append(operation)
        if self.domain in ("code", "proc"):
            return ExecutionResult(Status.SUCCEEDED, exec_id=ctx.exec_id)
        return BrokerOutcome(operation.kind)


def run(policy: PolicySnapshot, grant: Grant, manifest: Manifest, role: str | None, operation: Any) -> list[Any]:
    """Put one operation through the pipeline and return what reached an executor."""
    recorders = [Recorder(domain) for domain in DOMAINS]
    profile = ProfileBuilder(on_excess=OnExcess.CLAMP).build(grant, manifest, policy, tool=TOOL, role=role)
    try:
        asyncio.run(orchestrator_over(*recorders).run(operation, profile, session_id="s"))
    except RingfenceError:
        assert [recorder.ran for recorder in recorders if recorder.ran] == []
    return [ran for recorder in recorders for ran in recorder.ran]


def dangers(policy: PolicySnapshot, view: PolicyView, grant: Grant, manifest: Manifest) -> bool:
    """Whether all three together give something that no standard profile has."""
    met = view.capabilities.meet(grant.capabilities).meet(manifest.capabilities)
    reaches = bool(met.of("net.http"))
    lasting = {secret.name for secret in policy.policy.secrets if secret.scope == "conversation"}
    return (
        bool(met.of("fs.host"))
        or (reaches and view.net_mode is NetMode.UNRESTRICTED)
        or (reaches and not view.denials.networks >= PRIVATE_NETWORKS)
        or bool(lasting & {item.resource() for item in met.of("secret.use")})
    )


def beyond(run: CodeRun, view: PolicyView) -> bool:
    """Whether code asks for a host or a variable that the policy, beside its capabilities, does not let it have."""
    hosts = run.domains and (view.net_mode < NetMode.ALLOWLIST or any(map(view.denials.denies_domain, run.domains)))
    variables = view.env_allow is not None and any(
        not any(fnmatchcase(name, pattern) for pattern in view.env_allow) for name in run.env
    )
    return bool(hosts) or variables


@given(
    document=policies,
    granted=some,
    declared=some,
    # each of these alone is enough for a no, so most of them are not it
    expires_at=st.sampled_from([NOW + 1] * 8 + [NOW, NOW - 1]),
    tools=st.tuples(*[st.sampled_from([TOOL] * 9 + ["other"])] * 2),
    role=st.sampled_from([None, "r"] * 4 + ["stranger"]),
    operation=st.sampled_from(OPERATIONS),
)
@example(OPEN, ALL, ALL, NOW + 1, (TOOL, TOOL), None, op.FsRead("inputs/x"))
@example(OPEN, ALL, ALL, NOW + 1, (TOOL, TOOL), None, op.NetHttp("GET", "https://a.com/"))
@example(OPEN, ALL, ALL, NOW, (TOOL, TOOL), None, op.FsRead("inputs/x"))
@settings(max_examples=300, deadline=None)
def test_nothing_outside_policy_grant_or_manifest_ever_reaches_an_executor(
    document: dict[str, Any],
    granted: Capabilities,
    declared: Capabilities,
    expires_at: int,
    tools: tuple[str, str],
    role: str | None,
    operation: Any,
) -> None:
    policy = load_policy(json.dumps(document).encode())
    grant = Grant("t", "s", tools[0], "c", granted, expires_at, Budget(), "f")
    manifest = Manifest(tools[1], capabilities=declared)
    ran = run(policy, grant, manifest, role, operation)
    view = policy.view(TOOL, role)
    within = all(layer.allows(operation) for layer in (view.capabilities, granted, declared))
    outside = (
        not within
        or view.denials.refusal(operation) is not None
        or expires_at <= NOW
        or tools != (TOOL, TOOL)
        or role == "stranger"
        # nobody has agreed to anything here, and these take a person's word for this very call
        or dangers(policy, view, grant, manifest)
        or (isinstance(operation, CodeRun) and any(ask.lasting for ask in operation.secrets))
        or (isinstance(operation, CodeRun) and beyond(operation, view))
    )
    assert ran == [] or (ran == [operation] and not outside)


def test_the_operations_are_of_every_kind_and_every_domain_has_an_executor() -> None:
    assert {operation.domain for operation in OPERATIONS} == set(DOMAINS)
    assert {name.replace("net", "net.http") for name in wiring.DOMAINS} == set(DOMAINS)
    assert {item.tag for item in POOL} == set(KINDS)


def test_what_is_within_all_three_does_run() -> None:
    policy = load_policy(json.dumps(OPEN).encode())
    grant, manifest = Grant("t", "s", TOOL, "c", ALL, NOW + 1, Budget(), "f"), Manifest(TOOL, capabilities=ALL)
    for operation in (
        op.FsRead("inputs/x"),
        op.TmpAlloc(1),
        CodeRun(Language.BASH, "1"),
        op.BrowserNav("https://a.com/"),
        op.NetHttp("GET", "https://a.com/"),
        ws.WsSnapshot("l"),
        WsPending(),
        CodeRun(Language.PYTHON, "1", ports=(80,), domains=("a.com",), secrets=(SecretAsk("KEY"),)),
    ):
        assert run(policy, grant, manifest, None, operation) == [operation]
