"""`ringfence run` through the service of its home, where one runs and can do all that is asked for; else not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ringfence.interfaces.cli.lightly import lightly

if TYPE_CHECKING:
    from ringfence.client.service import Service
    from ringfence.evidence.correlation import Correlation
    from ringfence.interfaces.cli.options import RunOptions
    from ringfence.outcome import ExecutionResult, OnOutput

_OF_THE_ENGINE: Final = ("RINGFENCE_DATABASE", "RINGFENCE_BUDGET_SERVICE")
_AS_EVERY_SERVICE: Final = frozenset({"policy_file", "role", "isolation", "security_mode", "pool_size", "home"})
"""Where one of these is not as every service has it, `through_service` has said no."""
_PATIENCE_SECONDS: Final = 3.0
"""How long a person waits for a service that is away or busy; one that is about to end asks for longer, and is told of.

It may have taken the run on for whoever serves next, so nobody else may begin it.
"""
_MIB: Final = 1024 * 1024


def through_service(options: RunOptions) -> Callable[..., ExecutionResult] | None:
    """Return what runs code in the service of the home, in the shape of `ringfence.run`; None where an engine has to.

    What only whoever starts a service can choose (a policy, a role, the isolation) is never left out silently: a run
    that asks for it has an engine of its own, under the same home.
    """
    if options.policy is not None or options.role is not None or any(map(os.environ.get, _OF_THE_ENGINE)):
        return None
    if (options.isolation, options.security) != ("auto", "strict"):
        return None
    from ringfence.workspaces.home import default_home  # not at the top: a refused command line needs no home

    home = os.fspath(options.home if options.home is not None else default_home())
    if not os.path.lexists(f"{home}/service.sock"):  # before anything is imported: most homes have none
        return None
    lightly("http.client")
    from ringfence.client.peer import open_service
    from ringfence.client.retry import Retrying

    service = open_service(home, Retrying(_PATIENCE_SECONDS))
    return None if service is None else partial(_run, service)


def _run(
    service: Service,
    code: str,
    *,
    language: str,
    args: Iterable[str],
    stdin: bytes,
    env: Mapping[str, str] | None,
    packages: Iterable[str],
    preload: Iterable[str],
    timeout: float | None,
    memory_mb: int | None,
    session_id: str | None,
    inputs: Mapping[str, bytes] | None = None,
    correlation: Correlation | None = None,
    on_output: OnOutput | None = None,
    commit: str | None = None,
    secrets: Iterable[str] = (),
    **of_the_engine: Any,
) -> ExecutionResult:
    if unknown := of_the_engine.keys() - _AS_EVERY_SERVICE:
        raise TypeError(f"a run through the service would leave out {', '.join(sorted(unknown))}")
    from ringfence.client.forms import Asking
    from ringfence.operation.code import CodeRun, parse_language
    from ringfence.operation.secret import read_ask

    limits: dict[str, float] = {} if timeout is None else {"wall_seconds": timeout}
    if memory_mb is not None:
        limits["memory_bytes"] = memory_mb * _MIB
    operation = CodeRun(
        parse_language(language),
        code,
        args=tuple(args),
        stdin=stdin,
        inputs=inputs or {},
        env=env or {},
        packages=tuple(packages),
        preload=tuple(preload),
        session_id=session_id,
        secrets=tuple(map(read_ask, secrets)),
    )
    known = {} if correlation is None else correlation.members()
    asking = Asking(session_id, correlation=known, limits=limits, commit=commit or "always")
    return service.execute(operation, asking, on_output)
