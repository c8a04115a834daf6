"""Every key a scope of the policy may have, and how its value is read; a key that is not here is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from ringfence.authority.levels import Commit, FilesystemAccess, IsolationLevel, NetMode, RiskLevel
from ringfence.authority.units import seconds, size
from ringfence.errors import InvalidRequest
from ringfence.pattern import pattern

_E = TypeVar("_E", bound=Enum)
Read = Callable[[Any], Any]

_ENVIRONMENT = pattern(r"[A-Za-z_][A-Za-z0-9_]*\*?\Z")
_MIME = pattern(r"[a-z0-9.+-]+/(?:[a-z0-9.+-]+|\*)\Z")
_GPU = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")


def flag(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{value!r} is neither true nor false", reason="invalid_value", fix="write true or false")
    return value


def word(kind: type[_E]) -> Callable[[object], _E]:
    """Read one of the words of `kind`."""

    def read(value: object) -> _E:
        try:
            return kind(value)
        except ValueError:
            words = ", ".join(str(member.value) for member in kind)
            raise InvalidRequest(
                f"{value!r} is not one of {words}", reason="invalid_value", fix=f"write {words}"
            ) from None

    return read


def text(value: object) -> str:
    """Read text that is not empty."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise InvalidRequest(f"{value!r} is not text", reason="invalid_value", fix="put it in quotes")
    return value


def port(value: object) -> int:
    """Read a port."""
    if type(value) is not int or not 0 < value < 65536:
        raise InvalidRequest(f"{value!r} is not a port from 1 to 65535", reason="invalid_value", fix="write 443")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidRequest(f"{value!r} is not a number above 0", reason="invalid_value", fix="write 1.5")
    return float(value)


def _count(value: object) -> int:
    if type(value) is not int or value <= 0:
        raise InvalidRequest(f"{value!r} is not a whole number above 0", reason="invalid_value", fix="write 16")
    return value


def _named(pattern: re.Pattern[str], what: str, example: str) -> Read:
    def read(value: object) -> str:
        if not isinstance(value, str) or not pattern.match(value):
            raise InvalidRequest(f"{value!r} is not {what}", reason="invalid_value", fix=f"write {example}")
        return value

    return read


def _path(value: object) -> str:
    from ringfence.capability.glob import path_glob

    return path_glob(value)


def _denied_path(value: object) -> str:
    from ringfence.capability.glob import denied_glob

    return denied_glob(value)


def _denied_domain(value: object) -> str:
    from ringfence.capability.denials import denied_domain

    return denied_domain(value)


def _denied_command(value: object) -> str:
    from ringfence.capability.denials import denied_command

    return denied_command(value)


def _change(value: object) -> str:
    from ringfence.capability.glob import change_glob

    return change_glob(value)


def _host(value: object) -> str:
    from ringfence.capability.host import host_pattern

    return host_pattern(value)


def _host_path(value: object) -> str:
    from ringfence.operation.path import host_path

    return host_path(value)


def _command(value: object) -> str:
    from ringfence.capability.process import is_program

    words = text(value).split()
    if not is_program(words[0]):
        raise InvalidRequest(
            f"{words[0]!r} is not the bare name of a program", reason="invalid_value", fix="write git, not /usr/bin/git"
        )
    return " ".join(words)


def _language(value: object) -> Any:
    from ringfence.operation.code import parse_language

    return parse_language(value)


def _method(value: object) -> str:
    from ringfence.operation.target import METHODS

    if not isinstance(value, str) or value not in METHODS:
        raise _none_of(value, METHODS)
    return value


def _url_path(value: object) -> str:
    from ringfence.capability.url_path import path_pattern

    return path_pattern(value)


def _verb(value: object) -> str:
    from ringfence.capability.browser import VERBS

    if not isinstance(value, str) or value not in VERBS:
        raise _none_of(value, VERBS)
    return value


def _none_of(value: object, words: frozenset[str]) -> InvalidRequest:
    listed = ", ".join(sorted(words))
    return InvalidRequest(f"{value!r} is not one of {listed}", reason="invalid_value", fix=f"write {listed}")


# key → (limit, reader)
LIMIT_KEYS: dict[str, tuple[str, Read]] = {
    "max_execution_time": ("wall_seconds", seconds),
    "max_cpu_time": ("cpu_seconds", seconds),
    "max_cpu": ("cpus", _number),
    "max_memory": ("memory_bytes", size),
    "max_processes": ("pids", _count),
    "max_disk": ("disk_bytes", size),
    "max_inodes": ("inodes", _count),
    "max_open_files": ("open_files", _count),
    "max_file_size": ("file_bytes", size),
    "max_stdout": ("stdout_bytes", size),
    "max_stderr": ("stderr_bytes", size),
    "max_artifacts": ("artifact_bytes", size),
    "max_artifact_count": ("artifact_count", _count),
    "max_artifact_depth": ("artifact_depth", _count),
    "max_bytes_in": ("max_bytes_in", size),
    "max_bytes_out": ("max_bytes_out", size),
    "max_files": ("max_files", _count),
    "max_depth": ("max_depth", _count),
    "max_concurrency": ("max_concurrency", _count),
    "max_changed_paths": ("changed_paths", _count),
    "max_changed_bytes": ("changed_bytes", size),
}
KEY_OF_LIMIT = {limit: key for key, (limit, _) in LIMIT_KEYS.items()}

SCALAR_KEYS: dict[str, Read] = {
    "sandbox_enabled": flag,
    "risk_level": word(RiskLevel),
    "network_access": flag,
    "net_mode": word(NetMode),
    "filesystem_access": word(FilesystemAccess),
    "isolation": word(IsolationLevel),
    "critical_isolation": word(IsolationLevel),
    "require_cgroups": flag,
    "output_inline": flag,
    "intercept_tls": flag,
    "commit": word(Commit),
    **{key: read for key, (_, read) in LIMIT_KEYS.items()},
}

# Lists where the more specific one replaces the other.
LIST_KEYS: dict[str, Read] = {
    "allowed_paths": _path,
    "allowed_domains": _host,
    "allowed_commands": _command,
    "allowed_methods": _method,
    "allowed_ports": port,
    "allowed_url_paths": _url_path,
    "supported_languages": _language,
    "browser_scope": _verb,
    "mime_allow": _named(_MIME, "a media type", "application/json or text/*"),
    "env_allow": _named(_ENVIRONMENT, "the name of a variable", "LANG, or LC_* for all that begin so"),
    "open_ports": port,
    "gpu": _named(_GPU, "the name of a class of GPUs", "a100"),
    "host_paths": _host_path,
}

# Lists that add up, and which set of the denials each is.
DENY_KEYS: dict[str, tuple[str, Read]] = {
    "denied_paths": ("paths", _denied_path),
    "denied_domains": ("domains", _denied_domain),
    "denied_ports": ("ports", port),
    "denied_commands": ("commands", _denied_command),
    "denied_changes": ("changes", _change),
}

SCOPE_KEYS = (*SCALAR_KEYS, *LIST_KEYS, *DENY_KEYS, "command_templates", "budget")
