"""`ringfence key create|list|revoke`: the keys that sign grants, and with `--access` those that call a service."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringfence.errors import Unavailable
from ringfence.interfaces.cli.options import StrictParser, positive_count

if TYPE_CHECKING:
    import argparse

    from ringfence.authority.issuer_key import IssuerKey
    from ringfence.interfaces.cli.grant_desk import Desk

_DAY_MS = 24 * 3600 * 1000
_ACCESSES = ("admin", "operator", "auditor", "agent")


def key_command(words: Sequence[str]) -> int:
    """Carry out `ringfence key …` and return the exit code."""
    options = _parsed(words)
    match options.action:
        case "create":
            shown = _create(options)
        case "revoke":
            shown = _revoke(options.key_id)
        case _:
            shown = {"keys": _list()}
    if options.json:
        import json

        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        sys.stdout.writelines(_line(fields) for fields in shown.get("keys", [shown]))
        if "key" in shown:
            sys.stdout.write(f"{shown['key']}\n")
            sys.stdout.flush()
            sys.stderr.write("ringfence: this is the only time the key is shown; keep it where nobody else reads it\n")
    sys.stdout.flush()
    return 0


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = StrictParser(prog="ringfence key")
    parser.add_argument("action", choices=("create", "list", "revoke"))
    parser.add_argument("key_id", nargs="?")
    parser.add_argument("--access", choices=_ACCESSES)
    parser.add_argument("--tenant")
    parser.add_argument("--name")
    parser.add_argument("--role")
    parser.add_argument("--days", type=positive_count)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    if (options.key_id is None) is (options.action == "revoke"):
        parser.error("revoke needs the id of a key" if options.key_id is None else f"{options.action} takes no id")
    for name in ("access", "tenant", "name", "role", "days"):
        if getattr(options, name) is not None and options.action != "create":
            parser.error(f"--{name} is for create")
    if options.access is None and any(given is not None for given in (options.tenant, options.name, options.role)):
        parser.error("--tenant, --name and --role are for API keys: give --access too")
    return options


def _create(options: argparse.Namespace) -> dict[str, Any]:
    if options.access is not None:
        from ringfence.interfaces.cli.api_key import create_key
        from ringfence.workspaces.home import default_home

        return create_key(
            default_home(),
            options.access,
            tenant=options.tenant or "local",
            name=options.name or "",
            days=options.days,
            role=options.role,
        )
    from ringfence.interfaces.cli.grant_desk import open_desk
    from ringfence.interfaces.cli.noting import note

    desk = open_desk()
    made = desk.keys.create(valid_ms=(options.days or 90) * _DAY_MS)
    note(desk.home, "admin.key_created", {"key_id": made.key_id, "kind": "grant", "expires_at_ms": made.expires_at})
    return _fields(desk, [made])[0]


def _revoke(key_id: str) -> dict[str, Any]:
    from ringfence.interfaces.cli.api_key import revoke_key
    from ringfence.workspaces.home import default_home

    revoked_here = revoke_key(default_home(), key_id)
    if revoked_here is not None:
        return revoked_here
    from ringfence.interfaces.cli.grant_desk import open_desk
    from ringfence.interfaces.cli.noting import note

    desk = open_desk()
    revoked = desk.keys.revoke(key_id)
    note(desk.home, "admin.key_revoked", {"key_id": revoked.key_id, "kind": "grant"})
    return _fields(desk, [revoked])[0]


def _list() -> list[dict[str, Any]]:
    from ringfence.interfaces.cli.api_key import list_keys
    from ringfence.workspaces.home import default_home

    home = default_home()
    api_keys = list_keys(home)
    if not (home / "keys").is_dir():  # and without asking for the library that signs grants
        return api_keys
    from ringfence.interfaces.cli.grant_desk import open_desk

    desk = open_desk()
    return [*_fields(desk, desk.keys.list_keys()), *api_keys]


def _fields(desk: Desk, keys: Sequence[IssuerKey]) -> list[dict[str, Any]]:
    signs = _signing(desk)
    return [
        {
            "key_id": key.key_id,
            "kind": "grant",
            "state": _state(desk, key, signs),
            "fingerprint": key.fingerprint,
            "public": key.public.hex(),
            "not_before": key.not_before,
            "expires_at": key.expires_at,
        }
        for key in keys
    ]


def _signing(desk: Desk) -> str | None:
    try:
        return desk.keys.signing_key().key.key_id
    except Unavailable as error:
        if error.reason == "no_signing_key":
            return None
        raise


def _state(desk: Desk, key: IssuerKey, signs: str | None) -> str:
    if desk.revocations.is_key_revoked(key.key_id):
        return "revoked"
    if not key.is_valid(desk.clock.now_ms()):
        return "expired"
    # the newest one signs; what it replaced goes on verifying
    return "signs" if key.key_id == signs else "verifies"


def _line(fields: dict[str, Any]) -> str:
    if fields["kind"] == "api":
        until = "" if fields["expires_at"] is None else f"  until {_shown(fields['expires_at'])}"
        named = f"  {fields['name']}" if fields["name"] else ""
        named += f"  as {fields['role']}" if fields["role"] else ""
        return (
            f"{fields['key_id']}  api    {fields['state']:8}  {fields['access']} of {fields['tenant']}{named}{until}\n"
        )
    until = f"until {_shown(fields['expires_at'])}"
    return f"{fields['key_id']}  grant  {fields['state']:8}  {until}  {fields['fingerprint']}\n"


def _shown(ms: int) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
