"""The skills of a service: listed as it tells them, and called there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ringfence.client.service import RUN_SECONDS
from ringfence.errors import InvalidRequest
from ringfence.outcome_form import wrong_form
from ringfence.skills import values
from ringfence.skills.skill import Skill, SkillOutcome, skill_told

if TYPE_CHECKING:
    from ringfence.client.forms import Asking
    from ringfence.client.service import Service
    from ringfence.outcome import OnOutput
    from ringfence.wire.stop import Stop

_NAMES: Final = ("user_id", "space_id", "conversation_id", "turn_id", "task_id", "traceparent", "request_id")


def list_skills(service: Service, asking: Asking, stop: Stop | None = None) -> list[Skill]:
    """Return what the service offers.

    Raises:
        RingfenceError: What the service refused, or the way to it.
    """
    _, answer = service.call("GET", "/skills", asking=asking, stop=stop)
    told = answer.get("skills") if isinstance(answer, dict) else None
    if not isinstance(told, list):
        raise wrong_form("skills")
    try:
        return [skill_told(form) for form in told]
    except InvalidRequest:
        raise wrong_form("skills") from None


def find_skill(service: Service, asking: Asking, skill_id: str, stop: Stop | None = None) -> Skill:
    """Return one skill that the service offers.

    Raises:
        RingfenceError: There is none of this id, or what the service refused, or the way to it.
    """
    _, answer = service.call("GET", f"/skills/{quote(str(skill_id), safe='')}", asking=asking, stop=stop)
    try:
        return skill_told(answer)
    except InvalidRequest:
        raise wrong_form("skill") from None


def invoke_skill(
    service: Service,
    asking: Asking,
    skill_id: str,
    inputs: Mapping[str, Any],
    on_output: OnOutput | None = None,
    stop: Stop | None = None,
) -> SkillOutcome:
    """Call a skill there; what it printed is told when it is over.

    Raises:
        RingfenceError: What the service refused or failed at, or the way to it.
    """
    body: dict[str, Any] = {"inputs": json.loads(values.to_text(inputs))}
    if asking.session_id is not None:
        body["project_id"] = asking.session_id
    correlation = {name: asking.correlation[name] for name in _NAMES if name in asking.correlation}
    if correlation:
        body["correlation"] = correlation
    if "wall_seconds" in asking.limits:
        body["timeout_ms"] = asking.limits["wall_seconds"] * 1000
    target = f"/skills/{quote(str(skill_id), safe='')}/invoke"
    _, answer = service.call("POST", target, body, asking=asking, seconds=RUN_SECONDS, stop=stop)
    if not isinstance(answer, dict) or "outputs" not in answer or not isinstance(answer.get("skill_id"), str):
        raise wrong_form("outcome of a skill")
    result = service.result(answer.get("result"))
    for name, data in (("stdout", result.stdout_raw), ("stderr", result.stderr_raw)):
        if on_output is not None and data:
            on_output(name, data)
    return SkillOutcome(answer["skill_id"], answer["outputs"], result)
