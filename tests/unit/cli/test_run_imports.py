"""What `ringfence run` imports: four fifths of its time, so every module more has to be wanted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.needs("native")

# Each of these takes a millisecond or more, or brings others that do, and nothing of a plain run needs it.
TOO_HEAVY = {
    "asyncio.sslproto", "dataclasses", "decimal", "email", "http", "importlib.metadata", "inspect", "multiprocessing",
    "random", "shutil", "ssl", "statistics", "sysconfig", "tempfile", "tomllib", "unittest", "urllib.request", "uuid",
    "xml", "yaml", "zipfile",
}  # fmt: skip
MOST_OF_OURS = 205
MOST_OF_OTHERS = 140

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


def test_modules_that_were_left_out_are_there_for_whoever_asks() -> None:
    program = (
        "import sys; from ringfence.interfaces.cli.through import lightly; lightly('asyncio');"
        "assert not {'inspect', 'ssl', 'asyncio.sslproto', 'asyncio.staggered'} & sys.modules.keys();"
        "import asyncio, ssl; from asyncio import base_events;"
        "assert asyncio.iscoroutinefunction(asyncio.sleep) and 'inspect' in sys.modules;"
        "assert base_events.sslproto.SSLProtocol is sys.modules['asyncio.sslproto'].SSLProtocol;"
        "assert base_events.staggered.staggered_race"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
