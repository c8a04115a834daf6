"""`ringfence evidence report`: a period on one page, or what of a policy it never needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ringfence.interfaces.cli.evidence_desk import open_desk, parser, say
from ringfence.interfaces.cli.evidence_records import JournalRecords
from ringfence.interfaces.cli.evidence_selection import read_period
from ringfence.interfaces.cli.policy import load, print_json


def report_command(words: Sequence[str]) -> int:
    """Carry out `ringfence evidence report` and return the exit code."""
    taken = parser("report")
    taken.add_argument("--since")
    taken.add_argument("--until")
    taken.add_argument("--unused-rules", action="store_true")
    taken.add_argument("--policy")
    options = taken.parse_args(list(words))
    if options.unused_rules is not (options.policy is not None):
        taken.error("--unused-rules and --policy FILE belong together")
    desk = open_desk(options.home)
    since, until = read_period(options, desk.now_ms)
    policy = None if options.policy is None else load(options.policy)  # first: a broken one needs no evidence
    with desk.reading() as reader:
        records = JournalRecords(desk, reader)
        if policy is None:
            from ringfence.evidence.report import report

            page = report(records.records(since, until), since, until)
            lines, fields = page.lines(), page.to_json()
        else:
            from ringfence.evidence.unused import unused_rules

            usage = unused_rules(policy, records.records(since, until))
            lines = usage.lines()
            fields = {
                "policy": options.policy,
                "policy_version_hash": policy.policy_version_hash,
                "decisions": usage.decisions,
                "not_told": usage.not_told,
                "findings": [finding.to_json() for finding in usage.findings],
            }
    if options.json:
        print_json({"success": not records.broken, **fields})
    else:
        for line in lines:
            say(line)
        sys.stdout.flush()
        records.warn()
    return 3 if records.broken else 0
