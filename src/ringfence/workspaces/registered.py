"""The repositories that an operator lets projects begin with: `[workspace.repositories]` of the home's `config.toml`.

    [workspace.repositories]
    app = "/srv/repositories/app"                                # for every tenant
    ledger = {path = "/srv/repositories/ledger", tenants = ["acme"]}

A project gets a copy that is its own. Nothing that runs in it, and no broker, ever writes to the directory named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ringfence.authority.caller import check_tenant
from ringfence.dataclass import dataclass, replace
from ringfence.errors import InvalidRequest
from ringfence.workspaces.declared import declared_in
from ringfence.workspaces.home_config import wrong
from ringfence.workspaces.host_directories import absolute_path, checked_directory

MOST_REPOSITORIES: Final = 256


@dataclass(frozen=True, slots=True)
class Repository:
    """One registered directory, and whose projects may begin with it; `None` is everybody's."""

    name: str
    path: str
    tenants: frozenset[str] | None = None

    def is_for(self, tenant: str) -> bool:
        """Whether a project of the tenant may begin with it."""
        return self.tenants is None or tenant in self.tenants

    def checked(self, home: Path) -> Repository:
        """Return it with its real path.

        Raises:
            InvalidRequest: What lies there is nothing to be copied.
        """
        return replace(self, path=checked_directory(_key(self.name), self.name, self.path, home))


def repositories(home: Path) -> tuple[Repository, ...]:
    """Return what is registered, by name, for the operator to hear what is wrong with it.

    Raises:
        InvalidRequest: A name, a path or a tenant cannot be one; the message names it.
    """
    declared = declared_in(home, "repositories", MOST_REPOSITORIES)
    return tuple(_read(name, entry).checked(home) for name, entry in sorted(declared.items()))


def repository_names(home: Path, tenant: str) -> list[str]:
    """Return the names that a project of the tenant may begin with; where they lie is the operator's to know."""
    return [each.name for each in _offered(home, tenant)]


def repository(home: Path, name: str, tenant: str) -> Repository:
    """Return a repository by its name; one of other tenants and one that is not there are refused alike.

    Raises:
        InvalidRequest: There is none of this name for the tenant, or what lies there cannot be copied.
    """
    for each in _offered(home, tenant):
        if each.name == name:
            return each.checked(home)
    raise InvalidRequest("there is no such repository", reason="not_found", fix="list those there are")


def _offered(home: Path, tenant: str) -> Iterator[Repository]:
    """Yield what the tenant may begin with; an entry that is wrong is nobody's, and no tenant hears of another's."""
    for name, entry in sorted(declared_in(home, "repositories", MOST_REPOSITORIES).items()):
        with suppress(InvalidRequest):
            found = _read(name, entry)
            if found.is_for(tenant):
                yield found


def _read(name: str, entry: object) -> Repository:
    key = _key(name)
    if not isinstance(entry, Mapping):
        return Repository(name, absolute_path(key, name, entry))
    if unknown := sorted(entry.keys() - {"path", "tenants"}):
        raise wrong(f"{key}.{unknown[0][:100]}", "there is no such key; known: path, tenants")
    path = absolute_path(key, name, entry.get("path"))
    if "tenants" not in entry:
        return Repository(name, path)
    tenants = entry["tenants"]
    if not isinstance(tenants, list) or not all(isinstance(tenant, str) for tenant in tenants):
        raise wrong(f"{key}.tenants", "must be a list of tenants")
    try:
        for tenant in tenants:
            check_tenant(tenant)
    except InvalidRequest as error:
        raise wrong(f"{key}.tenants", str(error)) from None
    return Repository(name, path, frozenset(tenants))


def _key(name: str) -> str:
    return f"workspace.repositories.{name[:100]}"
