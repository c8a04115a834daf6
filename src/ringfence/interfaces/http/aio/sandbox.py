"""`/v1/sandbox`: what a client finds here, as AIO's clients ask for it before anything else."""

from __future__ import annotations

import json
import platform
from typing import Any

from starlette.responses import Response

from ringfence.errors import ExecutionFailed
from ringfence.interfaces.http.aio.envelope import Envelope, View, absent, expected, told
from ringfence.interfaces.http.aio.seat import AtSeat
from ringfence.interfaces.http.execs import as_json
from ringfence.interfaces.http.routes import Router
from ringfence.operation import WORKING_DIRECTORY
from ringfence.version import __version__

router = Router(prefix="/v1/sandbox", tags=["aio sandbox"])
_PACKAGES = (
    "import json; from importlib.metadata import distributions; "
    "print(json.dumps(sorted({(d.metadata['Name'] or '', d.version) for d in distributions()})))"
)


class ContextView(Envelope[Any]):
    """What there is; beside the envelope, as AIO has it."""

    home_dir: str
    version: str
    detail: dict[str, Any]
    workspace: str | None = None


@router.get("", response_model=None, responses={200: {"model": ContextView}})
async def context(_seat: AtSeat) -> Response:
    """Say where files lie and what runs here; nothing of the host beside the kind of its processor."""
    system = {
        "os": "Linux",
        "os_version": "",
        "arch": platform.machine(),
        "user": "sandbox",
        "home_dir": WORKING_DIRECTORY,
        "workspace": WORKING_DIRECTORY,
        "timezone": "UTC",
        "occupied_ports": [],
    }
    runtime = {"python": [{"bin": "python3", "alias": ["python"]}], "nodejs": [{"bin": "node"}]}
    tools = [{"name": name} for name in ("bash", "shell", "file", "code", "jupyter", "mcp", "skills")]
    return as_json(
        {
            "success": True,
            "message": "ok",
            "data": None,
            "home_dir": WORKING_DIRECTORY,
            "workspace": WORKING_DIRECTORY,
            "version": __version__,
            "detail": {"system": system, "runtime": runtime, "utils": [{"category": "ringfence", "tools": tools}]},
        }
    )


@router.get("/packages/python", response_model=None, responses={200: {"model": Envelope[list[dict[str, Any]]]}})
async def python_packages(seat: AtSeat) -> Response:
    """List the packages that code in a box can import."""
    with expected("packages"):
        async with seat.turn() as manager:
            result = await manager.execute_code("python", _PACKAGES)
        try:
            found = [{"name": str(name), "version": str(version)} for name, version in json.loads(result.stdout)]
        except (ValueError, TypeError):
            raise ExecutionFailed("the packages could not be listed") from None
    return told(found)


@router.get("/packages/nodejs", response_model=None, responses={200: {"model": Envelope[View]}})
async def nodejs_packages(_seat: AtSeat) -> Response:
    """Say that this is not known."""
    raise absent("list of Node's packages")
