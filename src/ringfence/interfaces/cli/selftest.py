"""`ringfence selftest escape`: what ships to get out of a box, tried in one; 0 when all of it was held."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ringfence.interfaces.cli.options import StrictParser
from ringfence.selftest.probe import Attempt, Verdict

_SHOWN = {Verdict.HELD: "held", Verdict.GOT_THROUGH: "GOT THROUGH", Verdict.UNTRIED: "not tried"}


def selftest_command(words: Sequence[str]) -> int:
    """Carry out `ringfence selftest escape` and return the exit code."""
    parser = StrictParser(prog="ringfence selftest")
    parser.add_argument("action", choices=("escape",))
    parser.add_argument("--isolation", choices=("auto", "native", "bwrap", "docker", "gvisor", "aio"), default="auto")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--home", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    from ringfence.interfaces.cli.usage import UsageError
    from ringfence.selftest.corpus import CORPUS
    from ringfence.selftest.escape import try_to_escape

    known = {probe.name for probe in CORPUS}
    if unknown := sorted(set(options.only) - known):
        raise UsageError(f"there is no probe {unknown[0]!r}", fix=f"known: {', '.join(sorted(known))}")
    found = []
    for attempt in try_to_escape(options.isolation, options.home, options.only):
        found.append(attempt)
        if not options.json:
            sys.stdout.write(_line(attempt))
            sys.stdout.flush()
    failed = [attempt for attempt in found if attempt.verdict is not Verdict.HELD]
    if options.json:
        answer = {"isolation": options.isolation, "held": not failed, "probes": [each.to_dict() for each in found]}
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.write(f"{len(found) - len(failed)} of {len(found)} attempts were held\n")
    sys.stdout.flush()
    return 1 if failed else 0


def _line(attempt: Attempt) -> str:
    probe = attempt.probe
    how = f" ({attempt.how})" if attempt.how else ""
    return f"{_SHOWN[attempt.verdict]:12} G{probe.guarantee:<3} {probe.name}: {probe.tries}{how}\n"
