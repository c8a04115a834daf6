"""How this host reaches other ones: `[net]` of a home's `config.toml`, the environment above it, an application on top.

[net]
ca_file = "/etc/ssl/corporate.pem"   # RINGFENCE_NET_CA_FILE: who is trusted instead of whom this host trusts
nat64 = ["2001:db8:64::/96"]         # RINGFENCE_NET_NAT64, with commas: behind which this network reaches IPv4
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ringfence.dataclass import replace
from ringfence.egress.settings import NetSettings, check_ca_file, check_nat64
from ringfence.errors import InvalidRequest
from ringfence.workspaces.home_config import line_of, section_of, wrong


def net_settings(home: Path, environ: Mapping[str, str], given: NetSettings) -> NetSettings:
    """Return `given` with what it leaves open as the environment says, or else the file.

    Raises:
        InvalidRequest: The file or a variable says something that no network is; the message names the place.
    """
    said: dict[str, Any] = {}
    for key, value in section_of(home, "net").items():
        where = line_of(home, "net", key)
        if key not in _KEYS:
            raise wrong(f"net.{key}", f"there is no such key; known: {', '.join(_KEYS)}", where)
        said[key] = _read(key, value, f"net.{key}", where)
    for key, (_, split) in _KEYS.items():
        variable = f"RINGFENCE_NET_{key}".upper()
        text = environ.get(variable, "").strip()
        if text:
            said[key] = _read(key, split(text), variable, "the environment")
    return replace(given, **{key: value for key, value in said.items() if not getattr(given, key)}) if said else given


def _read(key: str, value: Any, name: str, where: str) -> Any:
    try:
        return _KEYS[key][0](value)
    except InvalidRequest as error:
        raise wrong(name, str(error), where) from None


def _ca_file(value: Any) -> Path:
    if not isinstance(value, str) or not value.startswith("/"):
        raise InvalidRequest("must be an absolute path", reason="invalid_config")
    check_ca_file(Path(value))
    return Path(value)


def _nat64(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidRequest('must be a list of prefixes, as ["2001:db8:64::/96"]', reason="invalid_config")
    check_nat64(tuple(value))
    return tuple(value)


def _listed(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


_KEYS: Final[Mapping[str, tuple[Callable[[Any], Any], Callable[[str], Any]]]] = {
    "ca_file": (_ca_file, str),
    "nat64": (_nat64, _listed),
}
