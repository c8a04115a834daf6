"""`ringfence secret set|list|revoke`: what runs are lent by name; a value comes from stdin, never from the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringfence.errors import InvalidRequest
from ringfence.interfaces.cli.options import StrictParser

if TYPE_CHECKING:
    import argparse

    from ringfence.secrets.entry import Entry


def secret_command(words: Sequence[str]) -> int:
    """Carry out `ringfence secret …` and return the exit code."""
    options = _parsed(words)
    match options.action:
        case "set":
            shown = {"secrets": [_set(options).to_json()]}
        case "revoke":
            _revoke(options.name, options.tenant)
            shown = {"secrets": []}
        case _:
            shown = {"secrets": [entry.to_json() for entry in _registry().entries(options.tenant)]}
    if options.json:
        import json

        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        sys.stdout.writelines(_line(fields) for fields in shown["secrets"])
    sys.stdout.flush()
    return 0


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    from ringfence.operation.secret import Way

    parser = StrictParser(prog="ringfence secret")
    parser.add_argument("action", choices=("set", "list", "revoke"))
    parser.add_argument("name", nargs="?")
    parser.add_argument("--from", dest="source", metavar="SOURCE")
    parser.add_argument("--host", dest="hosts", action="append", default=[])
    parser.add_argument("--way", dest="ways", action="append", choices=[str(way) for way in Way], default=[])
    parser.add_argument("--tenant", default="local")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    if (options.name is None) is (options.action != "list"):
        parser.error("list takes no name" if options.name else f"{options.action} needs the name of a secret")
    if options.action != "set" and (options.source or options.hosts or options.ways):
        parser.error("--from, --host and --way are for set")
    return options


def _set(options: argparse.Namespace) -> Entry:
    from ringfence.operation.secret import Way
    from ringfence.secrets.entry import KEPT, check_hosts, read_source

    source = KEPT if options.source is None else read_source(options.source)
    value = _value() if options.source is None else None
    ways = frozenset(map(Way, options.ways)) or frozenset({Way.BROKER})
    entry: Entry = _registry().put(
        options.tenant, options.name, value, source=source, hosts=check_hosts(options.hosts), ways=ways
    )
    told = {"secret": entry.name, "secret_version": entry.version, "ways": sorted(entry.ways)}
    _note("admin.secret_set", {**told, "tenant": options.tenant})
    return entry


def _value() -> bytes:
    """Read the value from where no other process can see it."""
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("value: ").encode()
    from ringfence.masking import MOST_BYTES

    return sys.stdin.buffer.read(MOST_BYTES + 2).removesuffix(b"\n")


def _revoke(name: str, tenant: str) -> None:
    if not _registry().remove(tenant, name):
        raise InvalidRequest(f"there is no secret {name}", reason="unknown_secret", fix="ringfence secret list")
    _note("secret.revoked", {"secret": name, "tenant": tenant})


def _registry() -> Any:
    from ringfence.wiring.box import registry_of
    from ringfence.workspaces.home import default_home

    return registry_of(default_home())


def _note(kind: str, members: dict[str, Any]) -> None:
    from ringfence.interfaces.cli.noting import note
    from ringfence.workspaces.home import default_home

    note(default_home(), kind, members)


def _line(fields: dict[str, Any]) -> str:
    hosts = f"  for {', '.join(fields['hosts'])}" if fields["hosts"] else ""
    return f"{fields['name']}  version {fields['version']}  {fields['source']}  by {', '.join(fields['ways'])}{hosts}\n"
