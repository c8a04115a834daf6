"""An execution as 003 §5.1 has it asked for: kinds with their commands and arguments, inputs by path, narrowed limits.

Shape alone is none of its business: whoever parses the body has seen to types and lengths.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ringfence import arguments
from ringfence.authority.layers import read_overrides
from ringfence.authority.levels import Commit, NetMode
from ringfence.authority.limit_names import check_stated, stated
from ringfence.capability.limits import Limits
from ringfence.dataclass import dataclass, replace
from ringfence.errors import Denied, InvalidRequest
from ringfence.evidence.correlation import Correlation
from ringfence.facade import ExecutionRequest
from ringfence.operation import WORKING_DIRECTORY
from ringfence.operation.path import workspace_path
from ringfence.operation.secret import read_ask
from ringfence.service.callers import Access, Principal
from ringfence.service.stricter import NAMES, NOTHING, Stricter, read_stricter
from ringfence.workspaces.place import check_names

KINDS: Final = ("python", "shell", "bash", "javascript", "typescript")
"""What `exec.kind` may be; `bash` is another word for `shell`."""
_PROJECT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_COMMANDS: Final = {
    "python": ("python", "python3"),
    "shell": ("bash",),
    "javascript": ("node",),
    "typescript": ("node",),
}
_LANGUAGES: Final = {"python": "python", "shell": "bash", "javascript": "javascript", "typescript": "typescript"}
_CODE_FLAGS: Final = {"python": ("-c",), "shell": ("-lc", "-c"), "javascript": ("-e",), "typescript": ("-e",)}
_BESIDE: Final = ("project_id", "conversation_id", "skill_id")
GRANT_MEMBER: Final = "under_grant"
"""What stands in a body for the grant that came beside it: its digest, so that another grant is another request."""
_NOT_IN_DIGEST: Final = frozenset({"wait"})

# As `python FILE` would run it, so that tracebacks, `__file__` and imports from beside it are as one expects.
_SCRIPT = (
    "import runpy, sys; sys.argv[0] = {path!r}; sys.path[0:1] = [{directory!r}]; "
    "runpy.run_path({path!r}, run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class ExecForm:
    """One execution that could be run as it is written."""

    body: Mapping[str, Any]
    """As it was asked for; the digest of this tells one request from another."""
    request: ExecutionRequest
    project_id: str | None
    """Whose files it works on; None leaves nothing behind."""
    correlation: Correlation
    cwd: str = WORKING_DIRECTORY
    under_grant: bool = False
    stricter: Stricter = NOTHING

    @property
    def skill_id(self) -> str | None:
        """The skill on whose behalf it runs."""
        return self.correlation.skill_id

    @property
    def weight(self) -> int:
        """How many bytes of content it holds while it waits."""
        request = self.request
        files = sum(map(len, (*request.files.values(), *request.inputs.values())))
        return len(request.code) + len(request.stdin) + files

    def digest(self) -> str:
        """Return what tells this request from another; whether somebody waits for the answer does not."""
        return hashlib.sha256(canonical_body(self.body).encode()).hexdigest()


def canonical_body(body: Mapping[str, Any]) -> str:
    """Return a body as text that is the same for the same request."""
    kept = {name: value for name, value in body.items() if name not in _NOT_IN_DIGEST and value is not None}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def read_exec(body: Mapping[str, Any], *, request_id: str | None = None, traceparent: str | None = None) -> ExecForm:
    """Read the body of `POST /sandbox/execs`, whose types are those of its schema.

    Raises:
        PathTraversalError: The path of an input leads out of `inputs/`.
        InvalidRequest: It cannot be run as written; each message names the field.
        Denied: It asks for what no request may have.
    """
    correlation = correlation_of(body, request_id=request_id, traceparent=traceparent)
    project_id = _project(body, correlation)
    asked = body["exec"]
    kind = "shell" if asked["kind"] == "bash" else asked["kind"]
    code, args = _program(kind, asked)
    cwd = arguments.directory(asked.get("cwd"))
    overrides = body.get("policy_overrides") or {}
    domains = _domains(overrides.get("net") or {})
    timeout, limits, commit = _asked(overrides)
    request = ExecutionRequest(
        code=code,
        language=_LANGUAGES[kind],
        timeout=timeout,
        args=args,
        stdin=_stdin(asked),
        files=_files(body.get("files") or (), "work"),
        inputs=_files(body.get("inputs") or (), "inputs"),
        env=asked.get("env") or {},
        packages=asked.get("packages") or (),
        preload=asked.get("preload") or (),
        limits=limits,
        commit=commit,
        cwd=cwd,
        secrets=tuple(map(str, map(read_ask, body.get("secrets") or ()))),
        allow_domains=domains,
    )
    known = replace(correlation, project_id=project_id)
    stricter = read_stricter(overrides)
    return ExecForm(body, request, project_id, known, cwd, under_grant=GRANT_MEMBER in body, stricter=stricter)


def require_trusted_preload(who: Principal, form: ExecForm) -> None:
    """Refuse what would run in front of every box to all but those who answer for the instance.

    A module is preloaded by the process that boxes are forked from: one that a package brought would run there with the
    rights of the service.

    Raises:
        Denied: The caller is no admin.
    """
    if form.request.preload and not who.may(Access.ADMIN):
        raise Denied("exec.preload is for admins: it imports outside of the box", reason="access", fix="leave it out")


def correlation_of(
    body: Mapping[str, Any], *, request_id: str | None = None, traceparent: str | None = None
) -> Correlation:
    """Return what the caller's own records call this: `task_ref` and `correlation`, and what stands beside them.

    Raises:
        InvalidRequest: A name is not 1 to 256 printable characters.
    """
    reference = body.get("task_ref")
    names: dict[str, Any] = {"task_id": reference} if isinstance(reference, str) else dict(reference or {})
    names |= body.get("correlation") or {}
    names |= {name: body.get(name) for name in _BESIDE if body.get(name) is not None}
    names = {"request_id": request_id, "traceparent": traceparent} | names
    return Correlation(**{name: value for name, value in names.items() if value is not None})


def _project(body: Mapping[str, Any], correlation: Correlation) -> str | None:
    """Return whose files are meant; as 003 has it, a conversation is its own project where no other is named."""
    if body.get("ephemeral"):
        return None
    project_id = correlation.project_id or correlation.conversation_id
    if project_id is None:
        raise InvalidRequest(
            "project_id or conversation_id is needed: it names whose files the run works on",
            fix="give one, or ephemeral: true for a run that leaves nothing behind",
        )
    return project_name(project_id)


def project_name(project_id: str) -> str:
    """Return the name, if a project can have it.

    Raises:
        InvalidRequest: It is none.
    """
    if _PROJECT.match(project_id) is None:
        raise InvalidRequest(
            "project_id (or a conversation_id that stands for it) must be 1 to 128 letters, digits, '_', '-' or '.'",
            reason="invalid_session_id",
        )
    return project_id


def _program(kind: str, asked: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the code and its arguments, out of either form: `code`, or `command` with `args`."""
    command, code, args = asked.get("command"), asked.get("code"), tuple(asked.get("args") or ())
    if command is not None and command not in _COMMANDS[kind]:
        raise InvalidRequest(
            f"exec.command must be {' or '.join(_COMMANDS[kind])} where exec.kind is {kind}",
            reason="wrong_command",
            fix="choose the kind that fits, or give exec.code alone",
        )
    if code is not None:
        if command is not None:
            raise InvalidRequest("exec.code and exec.command are two ways to say the same; give one")
        return code, args
    flags = _CODE_FLAGS[kind]
    if len(args) == 2 and args[0] in flags:
        return args[1], ()
    if kind == "python" and args and not args[0].startswith("-"):
        return _script(args[0]), args[1:]
    script = ' or ["/workspace/inputs/main.py"]' if kind == "python" else ""
    raise InvalidRequest(
        f'exec.args must be ["{flags[0]}", <code>]{script} where exec.kind is {kind}',
        reason="wrong_command",
        fix="or give exec.code",
    )


def _script(path: str) -> str:
    where = workspace_path(path if path.startswith("/") else f"work/{path}")
    return _SCRIPT.format(path=where, directory=where.rpartition("/")[0])


def _asked(overrides: Mapping[str, Any]) -> tuple[float | None, Limits | None, str | None]:
    """Return the timeout, the other limits and what is to become of changes; how far is for the policy to say."""
    by_field: Mapping[str, Any] = overrides.get("limits") or {}
    named = {name: value for name, value in overrides.items() if name != "limits" and name not in NAMES}
    if _domains(named.get("net") or {}):
        del named["net"]  # each host is a demand of the run itself, judged with it
    elif named.get("net"):
        named["net"] = {"mode": named["net"]["mode"]}
    if "capabilities" in named:  # before they are read: a long list is compared each with each
        raise InvalidRequest(
            "policy_overrides.capabilities is not available in this version", reason="not_in_this_version"
        )
    asked = read_overrides(named)
    if asked.net_mode not in (None, NetMode.NONE):
        raise Denied(
            f"net.mode {asked.net_mode} is not for a request to ask for without the hosts: a run has no network",
            reason="not_granted",
            setting="net_mode",
            limit=str(NetMode.NONE),
        )
    check_stated(by_field)
    stated_ones: dict[str, Any] = {name: stated(name, value) for name, value in by_field.items()} | dict(asked.limits)
    timeout = stated_ones.pop("wall_seconds", None)
    commit = None if asked.commit is Commit.ALWAYS else str(asked.commit)
    return timeout, replace(Limits(), **stated_ones) if stated_ones else None, commit


def _domains(net: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the hosts that a run asks for: an allow-list names them."""
    domains = tuple(net.get("domains") or ())
    if domains and net["mode"] != str(NetMode.ALLOWLIST):
        raise InvalidRequest('net.domains are for {"mode": "allowlist"}', reason="invalid_overrides")
    return domains


def _stdin(asked: Mapping[str, Any]) -> bytes:
    if asked.get("stdin") is None and asked.get("stdin_b64") is None:
        return b""
    return _content({"content": asked.get("stdin"), "content_b64": asked.get("stdin_b64")}, "exec.stdin")


def _files(entries: Sequence[Mapping[str, Any]], under: str) -> dict[str, bytes]:
    check_names([entry["path"] for entry in entries], under=under)
    return {entry["path"]: _content(entry, "each of inputs and files") for entry in entries}


def _content(entry: Mapping[str, Any], what: str) -> bytes:
    text, encoded = entry.get("content"), entry.get("content_b64")
    if (text is None) == (encoded is None):
        raise InvalidRequest(f"{what} has either text or base64, not both", reason="invalid_content")
    try:
        return str(text).encode() if text is not None else base64.b64decode(str(encoded), validate=True)
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what}: this is not valid Unicode text", reason="invalid_text") from None
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{what}: this is not base64", reason="invalid_content") from None
