"""Whose package environments there are: the operator's, which everybody may use, and each tenant's own.

An environment is called by what was asked for, and what an index has under a name changes. Had all tenants one store,
the first who asks for `requests` would choose the version for everybody after him, and how long a build takes would
tell who uses what. So a tenant is given the operator's environment where there is one, else one from a store of his
own, which no other tenant is ever given anything from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ringfence.authority.caller import LOCAL, check_tenant
from ringfence.runtimes.packages import Environment, build, find, python_tag
from ringfence.runtimes.requirements import environment_key, normalise


def environment_for(tenant: str, requirements: Sequence[str], base: Path, python: Path) -> Environment:
    """Return the environment for `requirements`: that of `base`, which only the operator builds in, or a tenant's own.

    Raises:
        InvalidRequest: The tenant or a requirement is none, or a package does not exist or has no wheel.
        Unavailable: It cannot be built now.
    """
    if tenant == LOCAL:
        return build(requirements, base, python)
    check_tenant(tenant)
    shared = find(base, environment_key(normalise(requirements), python_tag()))
    return build(requirements, base / "tenants" / tenant, python) if shared is None else shared
