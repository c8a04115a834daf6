"""What `ringfence run` imports: four fifths of its time, so every module more has to be wanted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs("native")

# Each of these takes a millisecond or more, or brings others that do, and nothing of a plain run needs it.
TOO_HEAVY = {
    "asyncio.sslproto", "dataclasses", "decimal", "email", "gettext", "http", "importlib.metadata", "inspect",
    "ipaddress", "locale", "logging", "multiprocessing", "random", "shutil", "ssl", "statistics", "sysconfig",
    "tempfile", "tokenize", "tomllib", "traceback", "unittest", "urllib.parse", "uuid", "xml", "yaml", "zipfile",
}  # fmt: skip
MOST_OF_OURS = 206
MOST_OF_OTHERS = 125

PROGRAM = """
import sys
from ringfence.interfaces.cli.main import main
code = main(["run", "--no-stdin", "--home", sys.argv[1], "-c", "print('ran')"])
import json
print(json.dumps([code, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules of a process that ran one line in a box of the home of nobody in particular."""
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-I", "-c", PROGRAM, str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    ran, last = done.stdout.splitlines()
    code, modules = json.loads(last)
    assert (ran, code) == ("ran", 0)
    return set(modules)


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "ringfence"}


def test_nothing_heavy_is_imported_for_a_plain_run(imported: set[str]) -> None:
    assert imported & TOO_HEAVY == set()


def test_no_more_modules_are_imported_than_a_plain_run_needs(imported: set[str]) -> None:
    bare = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True
    )
    others = imported - ours(imported) - set(bare.stdout.split())
    assert (len(ours(imported)) <= MOST_OF_OURS, len(others) <= MOST_OF_OTHERS) == (True, True), sorted(imported)


def test_what_other_commands_boxes_and_policies_are_made_of_is_not_imported(imported: set[str]) -> None:
    elsewhere = (
        "ringfence.interfaces.http",
        "ringfence.isolation.docker",
        "ringfence.egress.proxy",
        "ringfence.budgets.",
    )
    found = {name for name in ours(imported) if name.startswith(elsewhere)} - {"ringfence.budgets.owner"}
    assert found == set()


LIGHTLY = """
import sys
from ringfence.interfaces.cli.lightly import lightly
lightly("argparse", "pathlib", "subprocess", "concurrent.futures", "asyncio")
left_out = {"gettext", "inspect", "linecache", "locale", "logging", "ssl", "traceback", "urllib.parse"}
assert not (left_out | {"asyncio.sslproto", "asyncio.staggered"}) & sys.modules.keys()
"""


@pytest.mark.parametrize(
    "asked",
    [
        "import asyncio; assert asyncio.iscoroutinefunction(asyncio.sleep) and 'inspect' in sys.modules",
        "from asyncio import base_events; import ssl;"
        "assert base_events.sslproto.SSLProtocol is sys.modules['asyncio.sslproto'].SSLProtocol",
        "from asyncio import base_events; assert base_events.staggered.staggered_race",
        "import pathlib; assert pathlib.Path('/a b').as_uri() == 'file:///a%20b'",
        "import subprocess; assert subprocess.run(['echo', '1'], capture_output=True, text=True).stdout == '1\\n'",
        "import gettext, logging, traceback; assert gettext.translation and logging.INFO and traceback.print_exc",
        "import argparse\ntry: argparse.ArgumentParser(exit_on_error=False).parse_args(['--unknown'])\n"
        "except SystemExit: pass",
        "import asyncio\nasync def main(): asyncio.current_task().print_stack()\nasyncio.run(main())",
        "import asyncio\nasyncio.run(asyncio.sleep(0), debug=True)",
    ],
)
def test_modules_that_were_left_out_are_there_for_whoever_asks(asked: str) -> None:
    subprocess.run([sys.executable, "-I", "-c", LIGHTLY + asked], check=True, capture_output=True)


def test_what_modules_log_is_logged_though_they_were_imported_without_logging() -> None:
    program = (
        "from concurrent.futures import Future; future = Future();"
        "future.add_done_callback(lambda _: 1 / 0); future.set_result(1)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", LIGHTLY + program], check=True, capture_output=True, text=True)
    assert "exception calling callback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_an_event_loop_tells_what_it_is_to_whoever_wants_to_know_everything() -> None:
    program = "import asyncio, logging; logging.basicConfig(level=10); asyncio.run(asyncio.sleep(0))"
    done = subprocess.run([sys.executable, "-I", "-c", LIGHTLY + program], check=True, capture_output=True, text=True)
    assert "DEBUG:asyncio:Using selector" in done.stderr
