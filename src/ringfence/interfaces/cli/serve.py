"""`ringfence serve`: the service of one home, on its port and its socket, until a signal ends it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringfence.dataclass import replace
from ringfence.errors import InvalidRequest, Unavailable
from ringfence.interfaces.cli.options import StrictParser
from ringfence.workspaces.home import default_home

if TYPE_CHECKING:
    from ringfence.service.house import House
    from ringfence.service.settings import ServiceSettings

_OTHER_DESCRIPTORS = 1024


def serve_command(words: Sequence[str]) -> int:
    """Carry out `ringfence serve` and return the exit code."""
    options = _parsed(words)
    try:
        import fastapi as _fastapi  # noqa: F401  to say what is missing before anything is opened
        import uvicorn as _uvicorn  # noqa: F401
    except ImportError as error:
        raise Unavailable(
            f"the service needs the library {error.name}",
            reason="extra_missing",
            fix="pip install 'ringfence[server]'",
        ) from error
    from ringfence.service.listening import only_service_of

    home = default_home()
    settings = _settings(options, home)
    _require_directories(home)
    with only_service_of(home):
        return _serve(home, settings)


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = StrictParser(prog="ringfence serve")
    parser.add_argument("--host")
    parser.add_argument("--port", type=_port)
    parser.add_argument("--policy")
    parser.add_argument("--database")
    parser.add_argument("--workspace-root")
    parser.add_argument("--skills")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--aio", action="store_true", default=None)
    return parser.parse_args(list(words))


def _port(word: str) -> int:
    if not word.isascii() or not word.isdigit() or int(word) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {word!r}")
    return int(word)


def _settings(options: argparse.Namespace, home: Path) -> ServiceSettings:
    from ringfence.arguments import database
    from ringfence.service.settings import read_settings

    given = options.config
    settings = read_settings(given or home / "config.toml", must_exist=given is not None, environment=os.environ)
    said: dict[str, Any] = {
        "host": options.host,
        "port": options.port,
        "policy": options.policy,
        "database": None if options.database is None else database(options.database),
        "skills": options.skills,
        "aio": options.aio,
    }
    if options.workspace_root is not None:
        root = str(Path(options.workspace_root).absolute())
        said |= dict.fromkeys(("workspace_root", "workspace_root_win", "workspace_root_wsl"), root)
    return replace(settings, **{name: value for name, value in said.items() if value is not None})


def _require_directories(home: Path) -> None:
    """Refuse to begin with directories of the host that no box could be shown and no project begin with.

    Raises:
        InvalidRequest: Naming the key in the home's configuration.
    """
    from ringfence.workspaces.declared import read_only_mounts
    from ringfence.workspaces.registered import repositories

    read_only_mounts(home)
    repositories(home)


def _serve(home: Path, settings: ServiceSettings) -> int:
    import asyncio
    import gc
    import logging

    from ringfence.interfaces.http.server import serve
    from ringfence.service.house import open_house
    from ringfence.service.listening import home_socket, open_port

    logging.basicConfig(level=logging.WARNING, format="ringfence: %(asctime)s %(message)s", stream=sys.stderr)
    _allow_many_connections(settings.max_connections)
    # first: whoever cannot listen must not start a pool
    with open_port(settings.host, settings.port) as port, home_socket(home) as owners:
        house = open_house(home, settings)
        _require_keys(house)
        address = port.getsockname()
        shown = f"http://{_host(str(address[0]))}:{address[1]}"

        async def ready() -> None:
            # what was imported stays: a collection need not go through all of it again
            gc.freeze()
            _say(house, shown, await _first_key(house))

        asyncio.run(serve(house, (port, owners), ready))
    return 0


def _allow_many_connections(most: int) -> None:
    """Let this process have a descriptor for each of them, as far as the system does."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + _OTHER_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, most + _OTHER_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _require_keys(house: House) -> None:
    """Refuse to be reached from outside without keys.

    Raises:
        InvalidRequest: Others could reach a service that nobody can call.
    """
    if not house.settings.is_loopback and not house.keys.has_active():
        raise InvalidRequest(
            f"{house.settings.host} can be reached from outside, and there are no API keys",
            reason="keys_needed",
            fix="make one first: ringfence key create --access admin",
        )


async def _first_key(house: House) -> str | None:
    """Return a new key for admins where nobody has any; the service runs already, so that it will be shown."""
    from ringfence.service.callers import Access
    from ringfence.service.keys import told

    if house.keys.has_active():
        return None
    made, text = house.keys.create(Access.ADMIN, name="first")
    await house.note("admin.key_created", told(made))
    return text


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _say(house: House, address: str, first_key: str | None) -> None:
    from ringfence.service.listening import SOCKET_NAME

    lines = [f"ringfence: serving {address} and {house.home / SOCKET_NAME}"]
    if first_key is not None:
        lines += [
            "ringfence: this home had no API key; here is one for its admin, shown this once:",
            f"  {first_key}",
            "ringfence: to use it:",
            f"  curl -H 'Authorization: Bearer {first_key}' {address}/sandbox/health",
        ]
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
