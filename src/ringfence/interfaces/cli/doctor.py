"""`ringfence doctor`: gather, judge, show; exit code 0 when code can run isolated and recorded here, 7 when not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from ringfence.dataclass import replace
from ringfence.doctor.diagnosis import diagnose
from ringfence.doctor.facts import Box, Facts, Image
from ringfence.interfaces.cli.options import StrictParser


def doctor_command(words: Sequence[str], *, look: Callable[[], Facts] | None = None) -> int:
    """Carry out `ringfence doctor` and return the exit code; `look` gives the machine's facts."""
    parser = StrictParser(prog="ringfence doctor")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    diagnosis = diagnose((look or _look_at_this_machine)())
    if options.json:
        import json

        sys.stdout.write(json.dumps(diagnosis.to_dict()) + "\n")
    else:
        from ringfence.doctor.report import report

        sys.stdout.write(report(diagnosis, colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    sys.stdout.flush()
    return 0 if diagnosis.is_ready else 7


def _look_at_this_machine() -> Facts:
    from ringfence.doctor.gather import gather
    from ringfence.interfaces.cli.doctor_journal import look_at_journal

    return gather(
        _build_a_box, os.environ, journal=lambda home: look_at_journal(home, os.environ), image=_look_at_image
    )


def _look_at_image() -> Image | None:
    import time

    from ringfence.images.age import age_in_days, days_since
    from ringfence.images.archive import all_in, default_cache
    from ringfence.images.scan import kept_scan

    built = all_in(default_cache())
    if not built:
        return None
    newest, now = built[0], int(time.time())
    image = Image(newest.path.stem, newest.sha256, age_in_days(newest, now))
    scan = kept_scan(newest)
    if scan is None:
        return image
    serious = len(scan.at_least("high"))
    return replace(image, scanner=scan.scanner, scan_age_days=days_since(scan.scanned_at, now), serious=serious)


def _build_a_box() -> Box:
    from ringfence.isolation.native.probe import probe

    found = probe()
    return Box(available=found.available, reason=found.reason, fix=found.fix, layers=found.layers)
