"""The operator's words about the engine: `[docker]` of the home's `config.toml`, with the environment above it.

[docker]
command = ["podman"]                     # RINGFENCE_DOCKER_COMMAND; else docker
url = "unix:///run/user/1000/docker.sock"  # RINGFENCE_DOCKER_URL; else where the command finds it
image = "ringfence/sandbox:latest"       # RINGFENCE_DOCKER_IMAGE
runtime = "runsc"                        # RINGFENCE_DOCKER_RUNTIME
seccomp = "/etc/ringfence/seccomp.json"  # RINGFENCE_DOCKER_SECCOMP; else ours
readonly_root = true
remote = false                           # else its address decides
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from ringfence.errors import InvalidRequest
from ringfence.isolation.docker.settings import EngineSettings

_CONFIG: Final = "config.toml"
_KEYS: Final = tuple(field.name for field in fields(EngineSettings))
_SWITCHES: Final = ("readonly_root", "remote")
_FROM_ENVIRONMENT: Final = {
    f"RINGFENCE_DOCKER_{name.upper()}": name for name in ("command", "url", "image", "runtime", "seccomp")
}


def engine_settings(home: Path, environment: Mapping[str, str], *, url: str | None = None) -> EngineSettings:
    """Return which engine the operator of `home` wants; `url` stands above everything.

    Raises:
        InvalidRequest: The file cannot be read, or says something nobody knows; the message names the place.
    """
    said = {name: _value(f"docker.{name}", name, value) for name, value in _section(home / _CONFIG).items()}
    for variable, name in _FROM_ENVIRONMENT.items():
        if environment.get(variable):
            said[name] = _value(variable, name, environment[variable])
    settings = EngineSettings(**said)
    return settings if url is None else replace(settings, url=url)


def _section(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    import tomllib

    try:
        section = tomllib.loads(path.read_text(encoding="utf-8")).get("docker", {})
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path.name} cannot be read: {error}", reason="invalid_config") from None
    if not isinstance(section, Mapping):
        raise _wrong("docker", "must be a section")
    for key in section:
        if key not in _KEYS:
            raise _wrong(f"docker.{key[:100]}", f"there is no such key; known: {', '.join(_KEYS)}")
    return section


def _value(place: str, name: str, value: object) -> Any:
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise _wrong(place, "must be true or false")
        return value
    if name == "command":
        words = shlex.split(value) if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise _wrong(place, 'must be a list of words such as ["docker"]')
        return tuple(words)
    if not isinstance(value, str):
        raise _wrong(place, "must be text")
    if name == "seccomp":
        path = Path(value).expanduser()
        if not path.is_absolute():
            raise _wrong(place, "must be an absolute path")
        return path
    return value


def _wrong(place: str, fault: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: {fault}", reason="invalid_config", fix=f"correct {place}, or leave it out")
