"""`ringfence key create|list|revoke`: the keys that sign grants; making a new one is how they are rotated."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringfence.errors import Unavailable
from ringfence.interfaces.cli.options import StrictParser, positive_count

if TYPE_CHECKING:
    from ringfence.authority.issuer_key import IssuerKey
    from ringfence.interfaces.cli.grant_desk import Desk

_DAY_MS = 24 * 3600 * 1000


def key_command(words: Sequence[str]) -> int:
    """Carry out `ringfence key …` and return the exit code."""
    parser = StrictParser(prog="ringfence key")
    parser.add_argument("action", choices=("create", "list", "revoke"))
    parser.add_argument("key_id", nargs="?")
    parser.add_argument("--days", type=positive_count)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    if (options.key_id is None) is (options.action == "revoke"):
        parser.error("revoke needs the id of a key" if options.key_id is None else f"{options.action} takes no id")
    if options.days is not None and options.action != "create":
        parser.error("--days is for create")

    from ringfence.interfaces.cli.grant_desk import open_desk
    from ringfence.interfaces.cli.noting import note

    desk = open_desk()
    match options.action:
        case "create":
            days = 90 if options.days is None else options.days
            made = desk.keys.create(valid_ms=days * _DAY_MS)
            note(desk.home, "admin.key_created", {"key_id": made.key_id, "expires_at_ms": made.expires_at})
            shown: Any = _fields(desk, [made])[0]
        case "revoke":
            revoked = desk.keys.revoke(options.key_id)
            note(desk.home, "admin.key_revoked", {"key_id": revoked.key_id})
            shown = _fields(desk, [revoked])[0]
        case _:
            shown = {"keys": _fields(desk, desk.keys.list_keys())}
    if options.json:
        import json

        sys.stdout.write(json.dumps(shown) + "\n")
    else:
        sys.stdout.writelines(_line(fields) for fields in shown.get("keys", [shown]))
    sys.stdout.flush()
    return 0


def _fields(desk: Desk, keys: Sequence[IssuerKey]) -> list[dict[str, Any]]:
    signs = _signing(desk)
    return [
        {
            "key_id": key.key_id,
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
    from ringfence.interfaces.cli.grant_desk import shown_time

    return (
        f"{fields['key_id']}  {fields['state']:8}  until {shown_time(fields['expires_at'])}  {fields['fingerprint']}\n"
    )
