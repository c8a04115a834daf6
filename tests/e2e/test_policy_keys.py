"""Every key that a policy may have does something: what it says is held, or what it would take is refused.

A key that is read and not held would be a promise to nobody. What takes more than one call to see is shown by the
tests that are named here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence import RingfenceError, SandboxManager
from ringfence.authority.policy_keys import SCOPE_KEYS
from ringfence.authority.policy_reader import TOP_KEYS
from ringfence.operation.brokered import FsList, FsRead, FsWrite, NetHttp, ProcExec
from ringfence.outcome import BrokerOutcome, ExecutionResult

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("native")

Act = Callable[[SandboxManager], Awaitable[Any]]
_HOST = "https://a.example.com/v1/x"
_NET = "network_access: true, allowed_domains: [a.example.com]"


def code(program: str, *, of: str = "", **asked: Any) -> Act:
    async def act(manager: SandboxManager) -> Any:
        result = await manager.execute_code("python", program, **asked)
        return getattr(result, of) if of else result

    return act


def shell(script: str, **asked: Any) -> Act:
    return lambda manager: manager.execute_shell(script, **asked)


def perform(*operations: Any) -> Act:
    async def act(manager: SandboxManager) -> Any:
        for operation in operations[:-1]:
            await manager.perform(operation)
        return await manager.perform(operations[-1])

    return act


def fetch(method: str = "GET", url: str = _HOST) -> Act:
    return perform(NetHttp(method, url))


def told(outcome: Any) -> str:
    """Say what came of it in one word: a reason if there is one, or else what the program said."""
    if isinstance(outcome, RingfenceError):
        return str(outcome.reason)
    if isinstance(outcome, ExecutionResult):
        return outcome.reason if outcome.reason not in (None, "exit_code") else outcome.stdout.strip()
    if isinstance(outcome, BrokerOutcome):
        return str(outcome.out.get("truncated", outcome.out))
    return str(outcome)


_FULL = "\ntry: {}\nexcept OSError as error: print(error.strerror)\nelse: print('no limit')"
_FORKS = "[(os.fork() or os._exit(os.pause() or 0)) for _ in range(9)]"

# key → (what the scope says, what is done, what comes of it)
HELD: dict[str, tuple[str, Act, str]] = {
    "risk_level": ("risk_level: critical", code("1"), "consent_required"),
    "network_access": ("network_access: false, allowed_domains: [a.example.com]", fetch(), "manifest_mismatch"),
    "net_mode": (f"{_NET}, net_mode: safe_retrieval", perform(NetHttp("GET", _HOST, {"X": "1"})), "request_content"),
    "filesystem_access": ("filesystem_access: none", perform(FsWrite("work/a", b"")), "manifest_mismatch"),
    "isolation": ("isolation: microvm", code("1"), "isolation_unavailable"),
    "critical_isolation": (
        "critical_isolation: microvm", code("import subprocess; subprocess.run(['curl', '-d', '@/etc/shadow', 'x'])"),
        "isolation_unavailable",
    ),
    "output_inline": ("output_inline: false", code("print('heard')"), ""),
    "max_execution_time": ("max_execution_time: 300ms", code("while True: pass"), "wall_timeout"),
    "max_cpu_time": ("max_cpu_time: 300ms", code("while True: pass"), "cpu_timeout"),
    "max_memory": ("max_memory: 64MB", code("b'1' * 200_000_000"), "memory"),
    "max_processes": (
        "max_processes: 4", code("import os" + _FULL.format(_FORKS)), "Resource temporarily unavailable",
    ),
    "max_disk": ("max_disk: 1MB", code(_FULL.format("open('a', 'wb', 0).write(bytes(5_000_000)); open('b', 'wb', 0)"
                                                     ".write(bytes(5_000_000))")), "No space left on device"),
    "max_inodes": ("max_inodes: 64", code(_FULL.format("[open(f'f{at}', 'w') for at in range(99)]")),
                   "No space left on device"),
    "max_open_files": ("max_open_files: 20", code(_FULL.format("files = [open('/dev/null') for _ in range(99)]")),
                       "Too many open files"),
    "max_file_size": ("max_file_size: 1KB", code("file = open('a', 'wb', 0); file.write(bytes(1024))"
                                                 + _FULL.format("file.write(b'x')")), "File too large"),
    "max_stdout": ("max_stdout: 1KB", code("print('x' * 5000)", of="stdout_truncated"), "True"),
    "max_stderr": ("max_stderr: 1KB", code("import sys; sys.stderr.write('x' * 5000)", of="stderr_truncated"), "True"),
    "max_artifacts": ("max_artifacts: 1KB", code("open('/output/a', 'wb').write(bytes(5000))"), "artifacts"),
    "max_artifact_count": (
        "max_artifact_count: 2", code("for at in range(5): open(f'/output/{at}', 'w').close()"), "artifacts",
    ),
    "max_artifact_depth": (
        "max_artifact_depth: 1", code("import os; os.mkdir('/output/a'); open('/output/a/b', 'w')", of="artifacts"),
        "()",
    ),
    "max_bytes_in": ("max_bytes_in: 1KB", perform(FsWrite("work/a", bytes(5000), overwrite=True), FsRead("work/a")),
                     "True"),
    "max_bytes_out": ("max_bytes_out: 1KB", perform(FsWrite("work/a", bytes(5000), overwrite=True)), "too_large"),
    "max_files": ("max_files: 1", perform(FsWrite("work/one", b""), FsWrite("work/two", b"")), "max_files"),
    "max_depth": ("max_depth: 1", perform(FsList("work/a/b")), "max_depth"),
    "max_changed_paths": (
        "max_changed_paths: 1", code("for at in range(3): open(f'changed-{at}', 'w').close()"), "changes_too_large",
    ),
    "max_changed_bytes": (
        "max_changed_bytes: 1KB", code("open('large', 'wb').write(bytes(5000))"), "changes_too_large",
    ),
    "allowed_paths": ("allowed_paths: [/workspace/inputs]", perform(FsRead("work/a")), "path"),
    "allowed_commands": ("allowed_commands: [ls]", shell("cat a"), "argument"),
    "supported_languages": ("supported_languages: [python]", shell("ls"), "manifest_mismatch"),
    "env_allow": ("env_allow: [A]", code("1", env={"B": "1"}), "blocked"),
    "open_ports": ("open_ports: [8080]", lambda manager: manager.start_process("true", ports=[8081]), "port"),
    "host_paths": ("filesystem_access: host, host_paths: [/opt]", code("1"), "consent_required"),
    "allowed_domains": (_NET, fetch(url="https://b.example.com/"), "domain"),
    "allowed_methods": (f"{_NET}, allowed_methods: [GET]", fetch("POST"), "method"),
    "allowed_ports": (f"{_NET}, allowed_ports: [443]", fetch(url="https://a.example.com:8443/"), "port"),
    "allowed_url_paths": (f"{_NET}, allowed_url_paths: [/v2/**]", fetch(), "path"),
    "denied_paths": ("denied_paths: [/workspace/.env]", perform(FsRead("work/.env")), "blacklist"),
    "denied_domains": (f"{_NET}, denied_domains: ['*.example.com']", fetch(), "blacklist"),
    "denied_ports": (f"{_NET}, denied_ports: [443]", fetch(), "port"),
    "denied_commands": ("denied_commands: [rm]", shell("rm a"), "argument"),
    "denied_changes": ("denied_changes: ['.git/**']", code("import os; os.mkdir('.git'); open('.git/a', 'w')"),
                       "change_denied"),
    "command_templates": ("allowed_commands: [echo], command_templates: {echo: [{args: [{enum: [a]}]}]}",
                          perform(ProcExec("echo", ("b",))), "argument"),
    "budget": ("budget: {calls: 0}", code("1"), "calls"),
}  # fmt: skip
_MEANING_TESTS = "tests/unit/authority/test_policy_meaning.py"
_CHECK_TESTS = "tests/unit/cli/test_policy_check.py"
ELSEWHERE = {
    "sandbox_enabled": f"{_MEANING_TESTS}::test_the_most_specific_word_about_the_isolation_counts",
    "require_cgroups": "tests/security/test_stricter.py::test_a_policy_has_memory_held_by_a_cgroup_or_nothing_runs",
    "commit": "tests/security/test_changes.py::test_a_policy_that_asks_cannot_be_talked_out_of_it",
    "max_cpu": "tests/security/test_limits_cgroup.py::test_the_cpu_quota_throttles_and_the_time_is_counted",
    "max_concurrency": "tests/e2e/test_law.py::test_no_more_calls_of_a_tool_run_at_once_than_the_policy_says",
    "browser_scope": "tests/e2e/test_browser.py::test_clicking_and_typing_need_their_own_verbs",
    "mime_allow": "tests/e2e/test_network_ledger.py::test_the_type_of_an_answer_is_one_that_is_listed",
    "intercept_tls": "tests/e2e/test_interception.py::test_methods_and_paths_hold_inside_tls",
    "gpu": "tests/unit/authority/test_policy_lint.py::test_what_is_doubtful_is_a_warning_and_loads",
}
TOP_ELSEWHERE = {
    "security_mode": "tests/unit/authority/test_profile_builder.py::test_a_request_cannot_loosen_a_strict_policy",
    "tests": f"{_CHECK_TESTS}::test_what_code_asks_for_is_judged_by_check_and_by_the_policys_own_tests",
    "taint": "tests/security/test_taint.py::test_who_reads_may_not_send_afterwards_and_is_told_why",
}
TOP: dict[str, tuple[str, Act, str]] = {
    "policies": ("policies: {default: {supported_languages: [python]}}", shell("ls"), "manifest_mismatch"),
    "network": ("network: {default: allowlist, denylist: {ports: [443]}}\npolicies: {default: {allowed_domains:"
                " [a.example.com]}}", fetch(), "port"),
    "mode": ("mode: ask", code("1"), "consent_required"),
    "ceilings": ("ceilings: {max_execution_time: 300ms}", code("while True: pass"), "wall_timeout"),
    "budgets": ("budgets: {session: {'*': {cpu_ms: 0}}}", code("1"), "cpu_ms"),
    "secrets": ("secrets: {KEY: {}}", code("1", secrets=["OTHER"]), "secret"),
    "rules": ("rules: [{id: no, decision: deny, command: git push}]", shell("true; git push"), "tool_denied"),
    "approvals": ("approvals: [{id: ask, command: git push}]", shell("true; git push"), "consent_required"),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


def test_every_key_is_here_and_what_shows_it_is_there() -> None:
    assert HELD.keys() | ELSEWHERE.keys() == set(SCOPE_KEYS)
    assert TOP.keys() | TOP_ELSEWHERE.keys() == set(TOP_KEYS)
    for where in (*ELSEWHERE.values(), *TOP_ELSEWHERE.values()):
        file, _, name = where.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), where


@pytest.mark.parametrize(
    ("text", "act", "expected"),
    [
        *(pytest.param(f"policies: {{default: {{{said}}}}}", act, expected, id=key)
          for key, (said, act, expected) in HELD.items()),
        *(pytest.param(*each, id=key) for key, each in TOP.items()),
    ],
)  # fmt: skip
async def test_what_a_key_says_holds(place: Path, text: str, act: Act, expected: str) -> None:
    policy = place / "policy.yaml"
    policy.write_text(text + "\n")
    async with SandboxManager("s", home=place / "home", policy_file=policy, pool_size=0) as manager:
        try:
            outcome = await act(manager)
        except RingfenceError as refused:
            outcome = refused
    assert told(outcome) == expected
