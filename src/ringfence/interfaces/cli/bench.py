"""`ringfence bench`: measure this machine against the promises, and show or save what came of it.

A missed promise is in the answer, not in the exit code: on a busy machine a ratio is news, not an error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ringfence.bench.bare import WrongOutput, interpreter
from ringfence.bench.box import open_box
from ringfence.bench.measure import CASES, measure
from ringfence.bench.subject import QUICK, Bench, OpenManager, Settings
from ringfence.bench.unrecorded import open_both
from ringfence.errors import InternalError
from ringfence.interfaces.cli.options import StrictParser
from ringfence.interfaces.cli.usage import UsageError
from ringfence.workspaces.home import default_home


def bench_command(
    words: Sequence[str], *, open_manager: OpenManager | None = None, settings: Settings | None = None
) -> int:
    """Carry out `ringfence bench` and return the exit code."""
    parser = StrictParser(prog="ringfence bench")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot")
    parser.add_argument("--only", action="append", default=[], choices=tuple(CASES))
    options = parser.parse_args(list(words))
    picture = _claim(options.plot) if options.plot else None
    with _own_home() as home:
        bench = Bench(
            open_manager=open_manager or _sandbox_manager(),
            open_box=open_box,
            open_both=open_both,
            home=home,
            settings=settings or (QUICK if options.quick else Settings()),
            environment=lambda packages: _environment(packages, home / "environments"),
            say=_say,
        )
        try:
            report = asyncio.run(measure(bench, options.only))
        except WrongOutput as error:
            raise InternalError(f"a measured program gave the wrong output: {error}", reason="wrong_output") from error
    if picture is not None:
        from ringfence.bench.plot import plot

        picture.write_text(plot(report.series))
    if options.json:
        import json

        sys.stdout.write(json.dumps(report.to_dict()) + "\n")
    else:
        from ringfence.bench.report import table

        sys.stdout.write(table(report))
    sys.stdout.flush()
    return 0


def _claim(path: str) -> Path:
    """Find out before half an hour of measuring whether the picture can be saved."""
    try:
        Path(path).touch()
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror}", fix="name a file that can be written") from error
    return Path(path)


@contextmanager
def _own_home() -> Iterator[Path]:
    """Give everything that is measured, commands too, a new home: on the user's disk, and not among his evidence."""
    usual = default_home()
    try:
        usual.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = tempfile.TemporaryDirectory(prefix="bench-", dir=usual)
    except OSError as error:
        raise UsageError(
            f"{usual}: {error.strerror}", fix="set RINGFENCE_HOME to a directory that can be written"
        ) from error
    before = os.environ.get("RINGFENCE_HOME")
    with made as name:
        os.environ["RINGFENCE_HOME"] = name
        try:
            yield Path(name)
        finally:
            if before is None:
                del os.environ["RINGFENCE_HOME"]
            else:
                os.environ["RINGFENCE_HOME"] = before


def _sandbox_manager() -> OpenManager:
    from ringfence import SandboxManager

    return SandboxManager


def _environment(packages: Sequence[str], store: Path) -> Path:
    """Build for bare what the manager builds for the box: the same wheels, by the same code."""
    from ringfence.runtimes.packages import build

    return build(packages, store, Path(interpreter())).path


def _say(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"ringfence: {text}\n")
