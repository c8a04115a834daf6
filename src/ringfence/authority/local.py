"""Who allows what in a process without an authorisation service: its policy, built-in manifests, grants of its own.

The simple API never shows a grant, and the pipeline behind it is the one that a signed grant goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ringfence.authority.caller import NOBODY_ELSE, Caller
from ringfence.authority.layers import Request
from ringfence.authority.manifest import built_in_manifest
from ringfence.authority.profile import Sources
from ringfence.authority.profile_builder import NO_REQUEST, ProfileBuilder
from ringfence.capability.limits import SYSTEM_CEILING
from ringfence.dataclass import replace
from ringfence.operation.code import CodeRun, Language

if TYPE_CHECKING:
    from ringfence.authority.grant import Grant
    from ringfence.authority.manifest import Manifest
    from ringfence.authority.policy import PolicySnapshot
    from ringfence.authority.policy_view import PolicyView
    from ringfence.authority.profile import Profile
    from ringfence.errors import RingfenceError
    from ringfence.operation.form import Operation

Issue = Callable[["PolicySnapshot", str, str | None, str, "Caller"], "Grant"]
"""Mint the grant of one call: policy, tool, role, call id, and who calls."""

_MOST_KNOWN = 256
_TOOL_OF = {
    "fs_read": "file_read",
    "fs_stat": "file_list",
    "fs_list": "file_list",
    "fs_write": "file_write",
    "fs_mkdir": "file_write",
    "fs_delete": "file_delete",
    "ws_pending": "file_read",
    "ws_commit": "file_write",
    "ws_discard": "file_write",
    "ws_diff": "file_read",
    "ws_snapshots": "file_read",
    "ws_snapshot": "file_write",
    "ws_restore": "file_write",
    "ws_reset": "file_delete",
    "ws_snapshot_delete": "file_delete",
    "ws_checkout": "file_write",
    "tmp_alloc": "tmp_use",
    "tmp_free": "tmp_use",
    "proc_exec": "proc_exec",
    "net_http": "http_request",
    "browser_nav": "browser_automation",
    "browser_extract": "browser_automation",
    "browser_screenshot": "browser_automation",
    "browser_click": "browser_automation",
    "browser_type": "browser_automation",
    "browser_close": "browser_automation",
}


def tool_of(operation: Operation) -> str:
    """Return the built-in tool that an operation without a tool of its own is a use of."""
    if isinstance(operation, CodeRun):
        return "shell_exec" if operation.language is Language.BASH else "code_run"
    return _TOOL_OF.get(operation.kind, operation.kind)


class LocalAuthority:
    """Makes the profile of each call from the policy of the moment."""

    def __init__(
        self,
        policy: Callable[[], PolicySnapshot],
        issue: Issue,
        builder: ProfileBuilder | None = None,
        problem: Callable[[], RingfenceError | None] = lambda: None,
    ) -> None:
        """`policy` is asked for every call, so that a changed file counts from the next one on.

        `problem` tells why the newest that `policy` has seen is not in use.
        """
        self._policy = policy
        self._problem = problem
        self._issue = issue
        self._builder = builder or ProfileBuilder()
        # by what the policy says and what the caller asks, which are held so that no identity is taken by another
        self._known: dict[tuple[int, int, int, bool], tuple[Profile, PolicyView, Request, Manifest | None]] = {}

    def may_use(self, tool: str, role: str | None) -> bool:
        """Whether the policy lets the role use the tool at all; what for, only a profile tells."""
        return self._policy().view(tool, role).refusal is None

    def policy_problem(self) -> RingfenceError | None:
        """Look at the policy now, and tell why the newest is not in use, if it is not."""
        self._policy()
        return self._problem()

    def shows_output(self, role: str | None) -> bool:
        """Whether the policy of the moment shows the role what programs and files say."""
        policy = self._policy()
        return all(policy.view(tool, role).output_inline for tool in ("code_run", "shell_exec", "file_read"))

    def profile(
        self,
        operation: Operation,
        *,
        call_id: str,
        caller: Caller = NOBODY_ELSE,
        role: str | None = None,
        request: Request = NO_REQUEST,
        granted: Grant | None = None,
        manifest: Manifest | None = None,
    ) -> Profile:
        """Return what the call may do; `granted` is a grant that came from elsewhere and was found good.

        `manifest` is of the skill that is called; without one the operation is a use of a built-in tool.

        Raises:
            InvalidRequest: The request asks for more than it may have.
        """
        policy = self._policy()
        tool = tool_of(operation) if manifest is None else manifest.id
        view = policy.view(tool, role)
        reaching = isinstance(operation, CodeRun) and bool(operation.domains)
        grant = granted or self._issue(policy, tool, role, call_id, caller)
        key = id(view), id(request), id(manifest), reaching
        known = None if granted is not None else self._known.get(key)
        if known is None:
            declared = manifest or built_in_manifest(tool, view.capabilities, reaching=reaching)
            profile = self._builder.build(grant, declared, policy, tool=tool, role=role, request=request)
            profile = replace(profile, sources=Sources(policy, request, granted, manifest))
            if granted is None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = profile, view, request, manifest
            return profile
        return replace(
            known[0],
            tenant=grant.tenant,
            subject_id=grant.subject_id,
            call_id=grant.call_id,
            expires_at=grant.expires_at,
            grant_id=grant.nonce,
            decision_key_fingerprint=grant.decision_key_fingerprint,
        )

    def longest(self, operation: Operation, *, role: str | None = None) -> float:
        """Return for how many seconds a call may ask at most, as far as the policy goes."""
        view = self._policy().view(tool_of(operation), role)
        return min(
            SYSTEM_CEILING.wall_seconds,
            view.ceilings.get("wall_seconds", SYSTEM_CEILING.wall_seconds),
            view.limits.get("wall_seconds", SYSTEM_CEILING.wall_seconds),
        )
