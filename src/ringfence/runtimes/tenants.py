"""Whose package environments there are: the operator's, which everybody may use, and each tenant's own.

An environment is called by what was asked for, and what an index has under a name changes. Had all tenants one store,
the first who asks for `requests` would choose the version for everybody after him, and how long a build takes would
tell who uses what. So a tenant is given the operator's environment where there is one, else one from a store of his
own, which no other tenant is ever given anything from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ringfence.authority.caller import LOCAL, check_tenant
from ringfence.errors import QuotaExceeded
from ringfence.runtimes.packages import Environment, build, find, python_tag
from ringfence.runtimes.requirements import environment_key, normalise

MOST_ENVIRONMENTS: Final = 64
"""How many environments a tenant has of its own; each is as large as its packages are."""


def environment_for(tenant: str, requirements: Sequence[str], base: Path, python: Path) -> Environment:
    """Return the environment for `requirements`: that of `base`, which only the operator builds in, or a tenant's own.

    Raises:
        InvalidRequest: The tenant or a requirement is none, or a package does not exist or has no wheel.
        QuotaExceeded: The tenant has as many of its own as it may.
        Unavailable: It cannot be built now.
    """
    if tenant == LOCAL:
        return build(requirements, base, python)
    check_tenant(tenant)
    key, own = environment_key(normalise(requirements), python_tag()), base / "tenants" / tenant
    shared = find(base, key)
    if shared is not None:
        return shared
    if find(own, key) is None and _count(own) >= MOST_ENVIRONMENTS:
        raise QuotaExceeded(
            f"there are {MOST_ENVIRONMENTS} package environments of this tenant already",
            reason="packages",
            limit=MOST_ENVIRONMENTS,
            fix="ask for packages that were asked for before; an operator can remove environments that nobody needs",
        )
    return build(requirements, own, python)


def _count(store: Path) -> int:
    try:
        return sum(1 for each in store.iterdir() if not each.name.startswith(".") and each.is_dir())
    except FileNotFoundError:
        return 0
