"""What a service knows about itself: what it can run, how it isolates, and what is wrong, as checks that turn red."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ringfence.authority.profile import Isolation
from ringfence.dataclass import dataclass
from ringfence.errors import RingfenceError
from ringfence.isolation.docker.configured import engine_settings
from ringfence.operation.code import Language
from ringfence.service.surroundings import DockerWatch, is_writable, runtime_mode
from ringfence.version import __version__

if TYPE_CHECKING:
    from ringfence.service.house import House

_REMEMBERED_SECONDS = 1.0
_docker = DockerWatch()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; one that is not needed may be red and the service well."""

    name: str
    ok: bool
    detail: str
    needed: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return it as one object."""
        return {
            "name": self.name,
            "status": "green" if self.ok else "red",
            "needed": self.needed,
            "detail": self.detail,
        }


def look(house: House, *, everywhere: bool) -> dict[str, Any]:
    """Return the full account for those who run the service; may block for some seconds.

    How much is going on, and when something last was, is told only to those who may see what every tenant does.
    """
    engine = engine_settings(house.home, os.environ)
    docker = _docker.look(engine.command, engine.url)
    root = house.files_home / "workspace"
    languages = _languages(house)
    pool = house.manager.pool_status()
    backends = _backends(house)
    unwritable = is_writable(root)
    checks = [
        Check("workspace_writable", unwritable is None, unwritable or "files can be made"),
        _policy_check(house),
        _pool_check(pool, backends),
        _evidence_check(house, everywhere=everywhere),
        Check("python", languages["python"]["available"], languages["python"]["detail"]),
        Check(
            "docker",
            docker.version is not None,
            f"version {docker.version}"
            if docker.version
            else "the docker command is not installed"
            if docker.cli_path is None
            else "its daemon does not answer",
            needed=house.settings.isolation == Isolation.DOCKER,
        ),
    ]
    well = all(check.ok for check in checks if check.needed)
    load = {"pool": pool, "executions": house.execs.counts() if house.execs is not None else {}} if everywhere else {}
    return {
        "status": "draining" if house.draining else "ok" if well else "degraded",
        "version": __version__,
        "runtime_mode": runtime_mode(),
        "workspace_root_native": str(root),
        "writable": unwritable is None,
        "docker_cli_path": docker.cli_path,
        "docker_version": docker.version,
        "docker_context": docker.context,
        "backends": backends,
        "languages": languages,
        **load,
        "domains": list(house.manager.engine.orchestrator.domains),
        "checks": [check.to_json() for check in checks],
    }


def is_well(house: House) -> bool:
    """Whether the service takes work: what everybody may know, and what costs no more than asking, however often."""
    now = time.monotonic()
    if now - house.looked_at > _REMEMBERED_SECONDS:
        house.looked_at, house.was_writable = now, is_writable(house.files_home / "workspace") is None
    return not house.draining and house.was_writable


def _backends(house: House) -> list[dict[str, Any]]:
    """Return each kind of isolation that workers are parked in now, with the layers that were seen on one of them."""
    seen: dict[str, dict[str, Any]] = {}
    for worker in house.manager.engine.pools.parked():
        seen.setdefault(
            worker.backend,
            {"name": worker.backend, "type": str(worker.sandbox_type), "layers": worker.layers.to_dict()},
        )
    return list(seen.values())


def _languages(house: House) -> dict[str, dict[str, Any]]:
    return {str(language): _language(house, language) for language in Language}


def _language(house: House, language: Language) -> dict[str, Any]:
    from ringfence.runtimes.node import require_node
    from ringfence.runtimes.python import bash_path, python_runtime

    try:
        match language:
            case Language.PYTHON:
                detail = str(python_runtime().executable)
            case Language.BASH:
                detail = str(bash_path())
            case _:
                node = require_node(typescript=language is Language.TYPESCRIPT, cache=house.home / "node.json")
                detail = f"Node {'.'.join(map(str, node.version))}"
    except RingfenceError as error:
        return {"available": False, "detail": str(error)}
    return {"available": True, "detail": detail}


def _policy_check(house: House) -> Check:
    problem = house.manager.engine.authority.policy_problem()
    if problem is None:
        return Check("policy", ok=True, detail="the newest is in use")
    return Check("policy", ok=False, detail=f"the one before stays in use: {problem}")


def _pool_check(pool: dict[str, int], backends: list[dict[str, Any]]) -> Check:
    # with nobody parked yet the first run builds its box, or says why it cannot
    works = bool(backends) or pool["starting"] + pool["busy"] > 0 or pool["waiting"] == 0
    return Check("pool", works, "workers are there or on their way" if works else "callers wait and no worker starts")


def _evidence_check(house: House, *, everywhere: bool) -> Check:
    try:
        with house.database.reading() as cursor:
            added = cursor.planted()
            last = cursor.execute("SELECT time_ms FROM journal_record ORDER BY place DESC LIMIT 1").fetchone()
    except RingfenceError as error:
        return Check("evidence", ok=False, detail=str(error))
    if added:
        return Check("evidence", ok=False, detail=f"somebody added {added[0]} to the database")
    if not everywhere:  # the last record may be another tenant's
        return Check("evidence", ok=True, detail="records can be read")
    if last is None:
        return Check("evidence", ok=True, detail="nothing was written yet")
    age = max(0, house.clock.now_ms() - int(last[0])) // 1000
    return Check("evidence", ok=True, detail=f"the last record is {age} s old")
