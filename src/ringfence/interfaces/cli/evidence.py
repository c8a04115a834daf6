"""`ringfence evidence`: find the action, and import only what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from ringfence.interfaces.cli.usage import UsageError

_ACTIONS = {
    "list": ("evidence_list", "list_command"),
    "show": ("evidence_show", "show_command"),
    "verify": ("evidence_verify", "verify_command"),
    "export": ("evidence_export", "export_command"),
    "replay": ("evidence_replay", "replay_command"),
    "report": ("evidence_report", "report_command"),
    "prune": ("evidence_retention", "prune_command"),
    "hold": ("evidence_retention", "hold_command"),
    "content": ("evidence_retention", "content_command"),
    "key": ("evidence_hand_out", "key_command"),
    "checkpoint": ("evidence_hand_out", "checkpoint_command"),
    "document": ("evidence_hand_out", "document_command"),
}


def evidence_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence ACTION` and return the exit code."""
    action, rest = (words[0], list(words[1:])) if words else ("", [])
    if action not in _ACTIONS:
        wrong = f"there is no 'ringfence evidence {action}'" if action else "'ringfence evidence' takes an action"
        raise UsageError(wrong, fix=f"give one of {', '.join(_ACTIONS)} first")
    module, name = _ACTIONS[action]
    command = getattr(import_module(f"ringfence.interfaces.cli.{module}"), name)
    code: int = command(rest)
    return code
