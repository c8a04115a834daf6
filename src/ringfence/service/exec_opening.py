"""Puts the queue of a house together from the house's settings, its manager, its database and its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringfence.identifiers import TimeOrdered
from ringfence.service.admission import Caps
from ringfence.service.exec_finder import Finder
from ringfence.service.exec_store import ExecStore
from ringfence.service.execs import Execs
from ringfence.service.runs import Runs, untold
from ringfence.service.standing import Standing

if TYPE_CHECKING:
    from ringfence.facade import SandboxManager
    from ringfence.service.callers import Principal
    from ringfence.service.calls import GrantShown
    from ringfence.service.exec_form import ExecForm
    from ringfence.service.house import House
    from ringfence.service.settings import ServiceSettings

_TENANTS_IN_LINE = 4
"""So many tenants can have as many waiting as one tenant may, before the line of the whole instance is full."""


def open_execs(house: House) -> Execs:
    """Return the queue of `house`; `Execs.start` takes over what an earlier service had promised."""

    def runs_for(who: Principal, form: ExecForm) -> Runs:
        return _as_skill(house, house.manager_for(who, form.project_id, form.correlation, form.stricter), form)

    async def runs_under(who: Principal, shown: GrantShown, form: ExecForm) -> Runs:
        manager = await house.manager_under(who, shown, form.project_id, form.correlation, form.stricter)
        return _as_skill(house, manager, form)

    guests = house.manager.engine.guests
    return Execs(
        runs_for,
        ExecStore(house.database),
        Finder(house.database, house.files_home),
        clock=house.clock,
        identifiers=TimeOrdered(),
        caps=caps_of(house.settings),
        drain_seconds=house.settings.drain_seconds,
        manager_under=runs_under,
        standing=Standing(house),
        shows=lambda who: house.manager.engine.authority.shows_output(who.role),
        gone=untold if guests is None else guests.telling,
    )


def _as_skill(house: House, manager: SandboxManager, form: ExecForm) -> Runs:
    """Return what runs within the manifest of the skill that is named.

    One that was asked for and is gone by now, as after a restart, is refused when it comes to run: never run without
    its bounds. A name among the correlation alone that is no skill's is the caller's own, and allows nothing.
    """
    skill_id = form.skill_id
    if skill_id is None or ("skill_id" not in form.body and skill_id not in house.skills):
        return manager
    return manager.on_behalf_of(skill_id)


def caps_of(settings: ServiceSettings) -> Caps:
    """Return the caps that the settings ask for; 0 is no cap of its own.

    The lines become shorter from the instance to the user, so that nobody's crowd closes one to those beside him.
    """
    return Caps(
        instance=settings.max_concurrent_execs,
        tenant=settings.max_concurrent_per_tenant or None,
        space=settings.max_concurrent_per_space or None,
        user=settings.max_concurrent_per_user or None,
        waiting=_TENANTS_IN_LINE * settings.queue_size,
        waiting_of_tenant=settings.queue_size,
        waiting_of_space=max(1, settings.queue_size // 2) if settings.max_concurrent_per_space else None,
        waiting_of_user=max(1, settings.queue_size // 4) if settings.max_concurrent_per_user else None,
    )
