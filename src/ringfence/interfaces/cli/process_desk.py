"""The processes of the service that runs over this home, as the command asks for them: through the socket in it."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ringfence.errors import Unavailable
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError
from ringfence.workspaces.home import default_home

if TYPE_CHECKING:
    from ringfence.client.service import Service

_PROCESS_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


class ProcessDesk:
    """Asks the service of this home; whoever owns the home sees every tenant's processes."""

    def __init__(self) -> None:
        """Find the service.

        Raises:
            Unavailable: None of this home is running.
        """
        from ringfence.client.peer import open_service

        service = open_service(default_home())
        if service is None:
            raise Unavailable(
                "no service of this home is running, and processes run in one",
                reason="no_service",
                fix="start one with 'ringfence serve'",
            )
        self._service: Service = service

    def start(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Start a process."""
        return self._ask("POST", "", form)

    def listed(self) -> list[dict[str, Any]]:
        """Return every process that the service knows of."""
        items: list[dict[str, Any]] = self._ask("GET", "")["items"]
        return items

    def poll(self, process_id: str, offsets: tuple[int, int], *, wait_ms: int = 0) -> dict[str, Any]:
        """Return where a process stands and what it said from the offsets on."""
        stdout, stderr = offsets
        query = f"?stdout_offset={stdout}&stderr_offset={stderr}&wait_ms={wait_ms}"
        return self._ask("GET", f"/{_checked(process_id)}{query}")

    def do(self, process_id: str, what: str, form: Mapping[str, Any]) -> dict[str, Any]:
        """Do something to a process: `stdin`, `signal` or `kill`."""
        return self._ask("POST", f"/{_checked(process_id)}/{what}", form)

    def _ask(self, method: str, rest: str, form: Mapping[str, Any] | None = None) -> dict[str, Any]:
        _, answer = self._service.call(method, f"/sandbox/processes{rest}", form)
        if not isinstance(answer, dict):
            raise Unavailable("the service answered with something else than it should")
        return answer


def _checked(process_id: str) -> str:
    if not _PROCESS_ID.match(process_id):
        raise UsageError("this is no id of a process", fix="'ringfence ps' lists them")
    return process_id


def parser_of(command: str) -> StrictParser:
    """Return the parser of one of these commands, with what all of them take."""
    parser = StrictParser(prog=f"ringfence {command}")
    parser.add_argument("--json", action="store_true")
    return parser


def data_of(piece: Mapping[str, Any]) -> bytes:
    """Return the bytes of a stretch of output."""
    return base64.b64decode(piece["data_b64"])


def say(answer: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    """Print what came of it: one JSON object, or a line for a person."""
    sys.stdout.write(json.dumps(answer) + "\n" if as_json else f"{line}\n")
    sys.stdout.flush()


def state_of(process: Mapping[str, Any]) -> str:
    """Return in a few words where a process stands."""
    state, exit_code, killed_by = process["state"], process["exit_code"], process["killed_by"]
    if killed_by not in (None, state):
        return f"{state} ({killed_by})"
    return str(state) if exit_code is None else f"{state} ({exit_code})"
