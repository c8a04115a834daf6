"""`ringfence skill invoke`: one call of a skill, as any door makes it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringfence.interfaces.cli.interrupt import Interrupts
from ringfence.interfaces.cli.options import positive_seconds
from ringfence.interfaces.cli.skill import parser_of
from ringfence.interfaces.cli.usage import UsageError
from ringfence.skills.skill import SkillOutcome


def invoke_command(words: list[str]) -> int:
    """Carry out `ringfence skill invoke` and return the exit code."""
    parser = parser_of("invoke")
    parser.add_argument("id", metavar="ID")
    parser.add_argument("--inputs", default="{}")
    parser.add_argument("--timeout", type=positive_seconds)
    parser.add_argument("--project")
    parser.add_argument("--policy")
    parser.add_argument("--role")
    options = parser.parse_args(words)
    inputs = _read(options.inputs)
    Interrupts().install()
    from ringfence.facade import SandboxManager
    from ringfence.portal import portal

    async def call() -> SkillOutcome:
        async with SandboxManager(
            options.project,
            pool_size=0,
            home=options.home,
            policy_file=options.policy,
            role=options.role,
            skills=options.skills,
        ) as manager:
            return await manager.invoke(options.id, inputs, timeout=options.timeout)

    return _conclude(portal().call(call()), as_json=options.json)


def _read(word: str) -> Mapping[str, Any]:
    from ringfence.errors import InvalidRequest
    from ringfence.skills import values

    try:
        if word == "-":
            text = sys.stdin.buffer.read(values.MAX_BYTES + 1)
        elif word.startswith("@"):
            with Path(word[1:]).open("rb") as file:
                text = file.read(values.MAX_BYTES + 1)
        else:
            text = word.encode()
    except (OSError, UnicodeEncodeError) as error:
        raise InvalidRequest(
            f"the inputs cannot be read: {getattr(error, 'strerror', None) or error}",
            reason="unreadable",
            fix="name a file that you may read",
        ) from error
    try:
        inputs = values.read(text)
    except ValueError as error:
        raise UsageError(f"--inputs is not JSON: {error}", fix="""write it as --inputs '{"name": "value"}'""") from None
    if not isinstance(inputs, dict):
        raise UsageError("--inputs must be an object", fix="""write it as --inputs '{"name": "value"}'""")
    return inputs


def _conclude(outcome: SkillOutcome, *, as_json: bool) -> int:
    import json

    from ringfence.interfaces.cli.render import result_exit_code, result_line
    from ringfence.outcome_form import result_fields

    result = outcome.result
    if as_json:
        fields = {
            "skill_id": outcome.skill_id,
            "success": outcome.success,
            "outputs": outcome.outputs,
            "reason": outcome.reason,
            "result": result_fields(result),
        }
        sys.stdout.write(json.dumps(fields) + "\n")
    else:
        if outcome.outputs is not None:
            sys.stdout.write(json.dumps(outcome.outputs, indent=2) + "\n")
        elif result.stderr_raw:
            from ringfence.interfaces.cli.screen import Screen

            sys.stderr.write(Screen().show(result.stderr.encode()).decode())
        line = result_line(result)
        if line is not None:
            sys.stderr.write(line)
    sys.stdout.flush()
    return result_exit_code(result, passthrough=False)
