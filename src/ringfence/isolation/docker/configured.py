"""Which engine a home uses: `[docker]` of its `config.toml`, the environment above it, and a caller's address on top.

[docker]
command = ["podman"]                       # RINGFENCE_DOCKER_COMMAND="podman"
url = "unix:///run/user/1000/docker.sock"  # RINGFENCE_DOCKER_URL
image = "ringfence/sandbox:latest"         # RINGFENCE_DOCKER_IMAGE
runtime = "runsc"                          # RINGFENCE_DOCKER_RUNTIME
seccomp = "/etc/ringfence/seccomp.json"    # RINGFENCE_DOCKER_SECCOMP
readonly_root = true                       # RINGFENCE_DOCKER_READONLY_ROOT
bring_python = false                       # RINGFENCE_DOCKER_BRING_PYTHON
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ringfence.dataclass import replace
from ringfence.isolation.docker.settings import EngineSettings
from ringfence.workspaces.home_config import section_of, wrong

_SWITCH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def engine_settings(home: Path, environ: Mapping[str, str], url: str | None = None) -> EngineSettings:
    """Return the engine that `home` uses; `url` is where a caller says it is.

    Raises:
        InvalidRequest: The file or a variable says something that is no engine.
    """
    said = {key: _read(key, value) for key, value in section_of(home, "docker").items()}
    for key in _KEYS:
        variable = f"RINGFENCE_DOCKER_{key}".upper()
        text = environ.get(variable, "").strip()
        if text:
            said[key] = _read(key, _KEYS[key][1](text), variable)
    settings = EngineSettings(**said)
    return settings if url is None else replace(settings, url=url)


def _read(key: str, value: Any, variable: str | None = None) -> Any:
    if key not in _KEYS:
        raise wrong(f"docker.{key}", f"there is no such key; known: {', '.join(_KEYS)}")
    read, _ = _KEYS[key]
    found = read(value)
    if found is None and variable is not None:
        raise wrong(variable, f"cannot be {value!r}", "the environment")
    if found is None:
        raise wrong(f"docker.{key}", f"cannot be {value!r}")
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and value.isprintable() else None


def _words(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value or not all(_text(word) for word in value):
        return None
    return tuple(value)


def _path(value: Any) -> Path | None:
    text = _text(value)
    return Path(text) if text is not None and text.startswith("/") else None


def _switch(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_KEYS: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[str], Any]]]] = {
    "command": (_words, shlex.split),
    "url": (_text, str),
    "image": (_text, str),
    "runtime": (_text, str),
    "seccomp": (_path, str),
    "bring_python": (_switch, lambda text: _SWITCH.get(text.lower(), text)),
    "readonly_root": (_switch, lambda text: _SWITCH.get(text.lower(), text)),
    "remote": (_switch, lambda text: _SWITCH.get(text.lower(), text)),
}
