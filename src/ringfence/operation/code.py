"""Running code: the one operation that needs a box, checked before anything runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar

from ringfence.dataclass import dataclass, field
from ringfence.errors import InvalidRequest
from ringfence.operation.secret import MOST_ASKED, SecretAsk
from ringfence.pattern import pattern

IN_A_BOX = frozenset({"code", "proc"})
"""The domains whose operations run in a box, which measures them and keeps their time."""
MAX_CODE_BYTES = 4 * 1024 * 1024
MAX_STDIN_BYTES = 64 * 1024 * 1024
MAX_INPUT_BYTES = 256 * 1024 * 1024
MAX_INPUT_FILES = 10_000
MAX_ENVIRONMENT_BYTES = 128 * 1024
WORKING_DIRECTORY = "/workspace/work"
"""Where every program starts, unless it asks for another directory of its workspace."""
MAX_PORTS = 16
MAX_DOMAINS = 64

_LONGEST_PATH = 4095
_ENVIRONMENT_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SESSION_ID = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_MODULE_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")


class Language(StrEnum):
    """What the code is written in; a missing runtime is an error that names what provides it."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"
    BASH = "bash"


@dataclass(frozen=True, slots=True)
class CodeRun:
    """Run `code` once: in a box of its own, or in the one of a process that keeps its variables."""

    kind: ClassVar[str] = "code_run"
    domain: ClassVar[str] = "code"

    language: Language
    code: str
    args: tuple[str, ...] = ()
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    inputs: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    session_id: str | None = None
    cwd: str = WORKING_DIRECTORY
    """The directory of the box that it starts in."""
    ports: tuple[int, ...] = ()
    """What it listens on, and whoever may reach into its box may connect to; each has to be granted."""
    secrets: tuple[SecretAsk, ...] = ()
    """What it needs that nobody may see; each has to be granted."""
    domains: tuple[str, ...] = ()
    """The hosts it reaches through the proxy, `name` or `*.suffix`; each has to be granted, and others it has none."""
    process_id: str | None = None
    """The process whose interpreter runs it, after whatever ran there before."""


def parse_language(name: object) -> Language:
    """Return the language called `name`.

    Raises:
        InvalidRequest: There is no such language.
    """
    try:
        return Language(name)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(Language)
        raise InvalidRequest(f"unknown language {name!r}; choose one of {known}", reason="unknown_language") from None


def check(operation: CodeRun) -> None:
    """Refuse an operation that could not be carried out exactly as written.

    Raises:
        InvalidRequest: Naming the field and what is wrong with it.
    """
    _check_text("code", operation.code, MAX_CODE_BYTES)
    for argument in operation.args:
        _check_text("args", argument, MAX_ENVIRONMENT_BYTES)
    if len(operation.stdin) > MAX_STDIN_BYTES:
        raise InvalidRequest(f"stdin is larger than {MAX_STDIN_BYTES} bytes", reason="too_large")
    _check_files("files", operation.files)
    _check_files("inputs", operation.inputs)
    _check_environment(operation.env)
    for module in operation.preload:
        if not _is_named(_MODULE_NAME, module):
            raise InvalidRequest(f"preload: {module!r} is not a module name", reason="invalid_preload")
    if operation.ports:
        _check_ports(operation.ports)
    if operation.secrets:
        _check_secrets(operation)
    if operation.domains:
        _check_domains(operation.domains)
    if operation.session_id is not None and not _is_named(_SESSION_ID, operation.session_id):
        raise InvalidRequest(
            f"session_id {operation.session_id!r} must be 1 to 128 letters, digits, '_', '-' or '.'",
            reason="invalid_session_id",
        )
    if operation.cwd != WORKING_DIRECTORY:
        _check_directory(operation.cwd)
    if operation.process_id is not None:
        _check_cell(operation)


def _check_directory(cwd: object) -> None:
    _check_text("cwd", cwd, _LONGEST_PATH)
    parts = str(cwd).split("/")
    if parts[:2] != ["", "workspace"] or any(part in ("", ".", "..") for part in parts[2:]):
        raise InvalidRequest(f"cwd must be /workspace/… without '..', not {str(cwd)[:100]!a}", reason="invalid_path")


def _check_cell(operation: CodeRun) -> None:
    if not _is_named(_SESSION_ID, operation.process_id):
        raise InvalidRequest("process_id is no name of a process", reason="invalid_name")
    brought = (
        *(operation.args, operation.stdin, operation.files, operation.inputs, operation.env),
        *(operation.packages, operation.domains, operation.secrets),
    )
    if any(brought) or operation.cwd != WORKING_DIRECTORY:
        raise InvalidRequest("a cell is code alone: what else it needs, the session was begun with")


def _is_named(pattern: re.Pattern[str], name: object) -> bool:
    return isinstance(name, str) and pattern.match(name) is not None


def _check_text(name: str, text: object, most: int) -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"{name} must be text, not {type(text).__name__}", reason="invalid_text")
    if "\0" in text:
        raise InvalidRequest(f"{name} contains a NUL byte", reason="nul_byte")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is not valid Unicode text", reason="invalid_text") from None
    if size > most:
        raise InvalidRequest(f"{name} is larger than {most} bytes", reason="too_large")


def _check_files(name: str, files: Mapping[str, bytes]) -> None:
    if len(files) > MAX_INPUT_FILES:
        raise InvalidRequest(f"{name}: more than {MAX_INPUT_FILES} files", reason="too_many_files")
    for path in files:
        # the annotation binds only callers who check their types
        if not isinstance(path, str):
            raise InvalidRequest(f"{name}: {path!r} is not a path", reason="invalid_path")
    if sum(map(len, files.values())) > MAX_INPUT_BYTES:
        raise InvalidRequest(f"{name}: more than {MAX_INPUT_BYTES} bytes in all", reason="too_large")


def _check_ports(ports: tuple[int, ...]) -> None:
    if len(ports) > MAX_PORTS:
        raise InvalidRequest(f"ports: more than {MAX_PORTS}", reason="invalid_port")
    for port in ports:
        if type(port) is not int or not 0 < port < 65536:
            raise InvalidRequest(f"ports: {port!r} is not a number from 1 to 65535", reason="invalid_port")


def _check_secrets(operation: CodeRun) -> None:
    if len(operation.secrets) > MOST_ASKED:
        raise InvalidRequest(f"secrets: more than {MOST_ASKED}", reason="invalid_secret")
    taken = set(operation.env)
    for ask in operation.secrets:
        if ask.label in taken:
            raise InvalidRequest(f"secrets: two things would be called {ask.label}", reason="invalid_secret")
        taken.add(ask.label)


def _check_domains(domains: tuple[str, ...]) -> None:
    from ringfence.operation.target import host_name, is_address  # most runs reach nothing

    if len(domains) > MAX_DOMAINS:
        raise InvalidRequest(f"domains: more than {MAX_DOMAINS}", reason="invalid_host")
    for domain in domains:
        name = host_name(str(domain).removeprefix("*."))
        if str(domain).startswith("*.") and ("." not in name or is_address(name)):
            raise InvalidRequest(
                f"domains: {domain!r} is everybody's", reason="invalid_host", fix="write *.example.com or example.com"
            )


def _check_environment(env: Mapping[str, str]) -> None:
    size = 0
    for name, value in env.items():
        if not _is_named(_ENVIRONMENT_NAME, name):
            raise InvalidRequest(f"env: {name!r} is not a variable name", reason="invalid_env")
        _check_text(f"env {name}", value, MAX_ENVIRONMENT_BYTES)
        size += len(name) + len(value)
    if size > MAX_ENVIRONMENT_BYTES:
        raise InvalidRequest(f"env is larger than {MAX_ENVIRONMENT_BYTES} bytes in all", reason="too_large")
