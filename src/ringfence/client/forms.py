"""Operations and what is asked for them, as the service's JSON takes them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ringfence.dataclass import dataclass, field, replace
from ringfence.errors import Denied
from ringfence.operation.code import WORKING_DIRECTORY, Language

if TYPE_CHECKING:
    from ringfence.operation.brokered import Brokered
    from ringfence.operation.code import CodeRun

_KINDS: Final = {Language.BASH: "shell"}


@dataclass(slots=True)
class GrantInUse:
    """A signed grant, and the call it is presented for, until that is over."""

    token: str = field(repr=False)
    call_id: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Asking:
    """What a manager says of each of its operations: for which project, in which role, within which limits."""

    session_id: str | None = None
    role: str | None = None
    correlation: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    limits: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    isolation: str = "auto"
    security_mode: str | None = None
    require_cgroups: bool = False
    commit: str = "always"
    grant: GrantInUse | None = None

    def headers(self) -> dict[str, str]:
        """Return what goes beside the body: a grant is a secret, and bodies are kept."""
        if self.grant is None:
            return {}
        if self.grant.is_over:
            raise Denied("the call this grant was presented for is over", reason="replayed")
        return {"X-Ringfence-Grant": self.grant.token, "X-Ringfence-Call": self.grant.call_id}

    def within(self, limits: Mapping[str, float]) -> Asking:
        """Return the same with these limits."""
        return replace(self, limits=limits)


def exec_form(operation: CodeRun, asking: Asking) -> dict[str, Any]:
    """Return the body that has the service run code."""
    form: dict[str, Any] = {"kind": _KINDS.get(operation.language, str(operation.language)), "code": operation.code}
    if operation.args:
        form["args"] = list(operation.args)
    if operation.env:
        form["env"] = dict(operation.env)
    if operation.stdin:
        form["stdin_b64"] = base64.b64encode(operation.stdin).decode()
    if operation.packages:
        form["packages"] = list(operation.packages)
    if operation.preload:
        form["preload"] = list(operation.preload)
    if operation.cwd != WORKING_DIRECTORY:
        form["cwd"] = operation.cwd
    body = {"exec": form, **_around(asking)}
    if operation.domains:
        net = {"mode": "allowlist", "domains": list(operation.domains)}
        body["policy_overrides"] = {**body.get("policy_overrides", {}), "net": net}
    if operation.files:
        body["files"] = _files(operation.files)
    if operation.inputs:
        body["inputs"] = _files(operation.inputs)
    if operation.secrets:
        body["secrets"] = list(map(str, operation.secrets))
    return body


def process_form(
    operation: CodeRun,
    asking: Asking,
    *,
    terminal: tuple[int, int] | None,
    idle_timeout: float | None,
    interpreter: bool,
) -> dict[str, Any]:
    """Return the body that has the service start a process."""
    body: dict[str, Any] = {**exec_form(operation, asking), "wait_ms": 0}
    if interpreter:
        body["interpreter"] = str(operation.language)
        body["exec"] = {name: value for name, value in body["exec"].items() if name != "code"}
    if terminal is not None:
        body["terminal"] = {"rows": terminal[0], "columns": terminal[1]}
    if idle_timeout is not None:
        body["idle_timeout_ms"] = idle_timeout * 1000
    if operation.ports:
        body["ports"] = list(operation.ports)
    return body


def operation_form(operation: Brokered, asking: Asking) -> dict[str, Any]:
    """Return the body that has the service carry out a brokered operation.

    Raises:
        InvalidRequest: The manager has limits of its own, which a service takes for runs alone.
    """
    from ringfence.config import of_the_service
    from ringfence.operation.form import to_json  # not at the top: the command only runs code

    # the time of a program is in the operation itself
    travelling = {"wall_seconds"} if getattr(operation, "timeout_ms", None) is not None else set()
    if left := asking.limits.keys() - travelling:
        raise of_the_service(f"{min(left)} of operations that run no code")
    body: dict[str, Any] = {"operation": to_json(operation)}
    if asking.session_id is not None:
        body["project_id"] = asking.session_id
    if asking.correlation:
        body["correlation"] = dict(asking.correlation)
    return body


def _around(asking: Asking) -> dict[str, Any]:
    body: dict[str, Any] = {"ephemeral": True} if asking.session_id is None else {"project_id": asking.session_id}
    overrides: dict[str, Any] = {}
    if asking.limits:
        overrides["limits"] = dict(asking.limits)
    if asking.isolation != "auto":
        overrides["isolation"] = asking.isolation
    if asking.security_mode is not None:
        overrides["security_mode"] = asking.security_mode
    if asking.require_cgroups:
        overrides["require_cgroups"] = True
    if asking.commit != "always":
        overrides["commit"] = asking.commit
    if asking.role is not None:
        overrides["role"] = asking.role
    if overrides:
        body["policy_overrides"] = overrides
    if asking.correlation:
        body["correlation"] = dict(asking.correlation)
    return body


def _files(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [{"path": path, "content_b64": base64.b64encode(content).decode()} for path, content in files.items()]
