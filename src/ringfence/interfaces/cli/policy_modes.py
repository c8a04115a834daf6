"""`ringfence policy show --mode`: what becomes of one action of every kind in a mode, as the guard itself answers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from ringfence.authority.levels import ApprovalMode, Decision
from ringfence.authority.local import tool_of
from ringfence.authority.policy import PolicyTest
from ringfence.authority.policy_reader import load_policy
from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli.policy import print_json
from ringfence.interfaces.cli.policy_check import call_of, judge
from ringfence.interfaces.cli.render import one_line
from ringfence.operation.judged import read_judged

_LISTED: Final = "network: {default: allowlist, allowlist: {domains: [example.com]}}\nsecrets: {KEY: {}}\n"
_ASKING: Final = "rules: [{id: ask, command: git push, decision: ask}]\n"
_HOST: Final = "policies: {default: {filesystem_access: host, host_paths: [/opt]}}\n"
_OPEN: Final = "network: {default: unrestricted, allowlist: {domains: [example.com]}}\n"
_BASH: Final = {"op": "code_run", "language": "bash", "code": "git push"}
_CRITICAL: Final = "policies: {tools: {code_run: {risk_level: critical}}}\n"

# what is done, under what policy beside its mode, and the operation
_ACTIONS: Final[tuple[tuple[str, str, Mapping[str, object]], ...]] = (
    ("read, list or compare files", "", {"op": "fs_read", "path": "work/a"}),
    ("write, change or delete files", "", {"op": "fs_write", "path": "work/a", "bytes_b64": ""}),
    ("use temporary space", "", {"op": "tmp_alloc", "size_bytes": 1}),
    ("run code", "", {"op": "code_run", "language": "python", "code": "1"}),
    ("run a shell command", "", _BASH),
    ("fetch from a host that the policy lists", _LISTED, {"op": "net_http", "method": "GET", "url": "https://example.com/"}),
    ("open a page of a host that it lists", _LISTED, {"op": "browser_nav", "url": "https://example.com/"}),
    ("run code that reaches a host it lists", _LISTED, {**_BASH, "domains": ["example.com"]}),
    ("run code with a secret that it lends", _LISTED, {**_BASH, "secrets": ["KEY"]}),
    ("what one of its rules asks about", _ASKING, _BASH),
    ("what it does not give", "", {**_BASH, "domains": ["example.com"]}),
    ("what it calls critical", _CRITICAL, {"op": "code_run", "language": "python", "code": "1"}),
    ("files of the host", _HOST, _BASH),
    ("the unrestricted or private network", _OPEN, {"op": "net_http", "method": "GET", "url": "https://example.com/"}),
)  # fmt: skip
_ASKS_NOBODY: Final = (ApprovalMode.AUTO, ApprovalMode.NEVER_ASK)


def show_mode(mode: str, *, as_json: bool) -> int:
    """Print what becomes of every kind of action in `mode` and return the exit code.

    Raises:
        InvalidRequest: There is no such mode.
    """
    if mode not in tuple(ApprovalMode):
        raise InvalidRequest(
            f"{mode!r} is not a mode", reason="invalid_value", fix=f"give one of {', '.join(ApprovalMode)}"
        )
    decided = decisions(ApprovalMode(mode))
    if as_json:
        print_json({"mode": mode, "actions": decided})
    else:
        width = max(map(len, decided))
        sys.stdout.writelines(one_line(f"{action.ljust(width)}  {answer}") for action, answer in decided.items())
        sys.stdout.flush()
    return 0


def decisions(mode: ApprovalMode) -> dict[str, str]:
    """Ask the guard about every kind of action under the built-in policy in `mode`."""
    return {action: _decided(mode, policy, form) for action, policy, form in _ACTIONS}


def _decided(mode: ApprovalMode, policy: str, form: Mapping[str, object]) -> str:
    snapshot = load_policy(f"mode: {mode}\n{policy}".encode(), "built-in")
    operation = read_judged(form)
    test = PolicyTest("", tool_of(operation), operation, Decision.ALLOW)
    decision = judge(call_of(test, snapshot), operation).decision
    if decision is Decision.ASK:
        return "denied: nobody is asked" if mode in _ASKS_NOBODY else "asked, and denied where nobody can be asked"
    return "allowed" if decision is Decision.ALLOW else "denied"
