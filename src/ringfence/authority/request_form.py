"""A caller's request as a document: what evidence keeps of it, so that the profile can be made again years later."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from ringfence.authority.layers import Request
from ringfence.authority.levels import Commit, NetMode
from ringfence.authority.limit_names import FIELDS, stated
from ringfence.authority.profile import Isolation, SecurityMode
from ringfence.capability.budget import INHERITED, read_budget
from ringfence.capability.canonical import canonical, digest_of
from ringfence.capability.capabilities import read_capabilities
from ringfence.errors import InvalidRequest

_Word = TypeVar("_Word", bound=Enum)
_KEYS = frozenset(
    {"limits", "capabilities", "budget", "net_mode", "isolation", "security_mode", "require_cgroups", "commit"}
    | {"ceilings", "net_ceiling"}
)


def request_document(request: Request) -> tuple[str, str] | None:
    """Return the digest and the text of what is asked for, or nothing where nothing is asked."""
    form = request_to_json(request)
    if not form:
        return None
    text = canonical(form)
    return digest_of(text), text.decode()


def request_to_json(request: Request) -> dict[str, Any]:
    """Return what is asked for, and nothing of what is left to the authorities."""
    form: dict[str, Any] = {}
    if request.limits:
        form["limits"] = dict(sorted(request.limits.items()))
    if request.capabilities is not None:
        form["capabilities"] = request.capabilities.to_json()
    if request.budget != INHERITED:
        form["budget"] = request.budget.to_json()
    if request.net_mode is not None:
        form["net_mode"] = str(request.net_mode)
    if request.isolation is not Isolation.AUTO:
        form["isolation"] = str(request.isolation)
    if request.security_mode is not None:
        form["security_mode"] = str(request.security_mode)
    if request.require_cgroups:
        form["require_cgroups"] = True
    if request.commit is not Commit.ALWAYS:
        form["commit"] = str(request.commit)
    if request.ceilings:
        form["ceilings"] = dict(sorted(request.ceilings.items()))
    if request.net_ceiling is not None:
        form["net_ceiling"] = str(request.net_ceiling)
    return form


def request_from_json(form: object) -> Request:
    """Read what `request_to_json` returns.

    Raises:
        InvalidRequest: A member is unknown or wrong.
    """
    if not isinstance(form, dict) or not form.keys() <= _KEYS:
        raise _refused("must be an object of known members")
    cgroups = form.get("require_cgroups", False)
    if not isinstance(cgroups, bool):
        raise _refused("require_cgroups must be true or false")
    return Request(
        limits=_limits(form.get("limits", {})),
        capabilities=read_capabilities(form["capabilities"]) if "capabilities" in form else None,
        budget=read_budget(form.get("budget", {})),
        net_mode=_word(form, "net_mode", NetMode, None),
        isolation=_word(form, "isolation", Isolation, Isolation.AUTO) or Isolation.AUTO,
        security_mode=_word(form, "security_mode", SecurityMode, None),
        require_cgroups=cgroups,
        commit=_word(form, "commit", Commit, Commit.ALWAYS) or Commit.ALWAYS,
        ceilings=_limits(form.get("ceilings", {})),
        net_ceiling=_word(form, "net_ceiling", NetMode, None),
    )


def _limits(form: object) -> dict[str, float]:
    if not isinstance(form, dict):
        raise _refused("limits must be an object")
    for name, value in form.items():
        if name not in FIELDS or isinstance(value, bool) or not isinstance(value, int | float):
            raise _refused(f"{str(name)[:100]!r} is not a limit with a number")
    return {name: stated(name, value) for name, value in form.items()}


def _word(form: dict[str, Any], name: str, words: type[_Word], default: _Word | None) -> _Word | None:
    try:
        return words(form[name]) if name in form else default
    except ValueError:
        raise _refused(f"{name} is not a known word") from None


def _refused(problem: str) -> InvalidRequest:
    return InvalidRequest(f"the request cannot be read: {problem}", reason="invalid_overrides")
