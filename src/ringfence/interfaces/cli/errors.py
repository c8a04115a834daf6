"""`ringfence errors list`: the registry of codes and reasons, as the table has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ringfence.errors.table import RESERVED_FAMILIES, TABLE, Answer, answer, page_of
from ringfence.interfaces.cli.options import StrictParser


def errors_command(words: Sequence[str]) -> int:
    """Carry out `ringfence errors list` and return the exit code."""
    parser = StrictParser(prog="ringfence errors")
    parser.add_argument("action", choices=("list",))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(list(words))
    if options.json:
        import json

        sys.stdout.write(json.dumps(registry()) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines())
    sys.stdout.flush()
    return 0


def registry() -> dict[str, Any]:
    """Return the whole table as plain JSON values, each reason with what is true of it."""
    return {
        "codes": [
            {
                "code": name,
                "title": code.title,
                **_values(Answer(code.title, code.http_status, code.exit_code, code.retryable)),
                "grpc": code.grpc,
                "page": page_of(name),
                "reasons": [
                    {"reason": reason, "meaning": entry.meaning, **_values(answer(name, reason))}
                    for reason, entry in code.reasons.items()
                ],
            }
            for name, code in TABLE.items()
        ],
        "reserved_families": list(RESERVED_FAMILIES),
    }


def _values(found: Answer) -> dict[str, int | bool]:
    return {"http_status": found.http_status, "exit_code": found.exit_code, "retryable": found.retryable}


def _lines() -> Iterator[str]:
    yield f"{'':26}{'HTTP':>4}  {'exit':>4}  try again"
    for name, code in TABLE.items():
        yield ""
        yield f"{name}: {code.title} ({page_of(name)})"
        for reason, entry in code.reasons.items():
            found = answer(name, reason)
            again = "yes" if found.retryable else "no"
            yield f"  {reason:24}{found.http_status:>4}  {found.exit_code:>4}  {again:9}  {entry.meaning}"
    yield ""
    yield f"Reserved families, without a code yet: {', '.join(RESERVED_FAMILIES)}"
