"""The command ends as any program does, but for taking the interpreter apart."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, sys, threading
from ringfence.interfaces.cli import main

class Left:
    def __del__(self):
        sys.stderr.write("taken apart")

def run():
    atexit.register(lambda: print("done at exit"))
    threading.Thread(target=lambda: sys.stdout.write("waited for\\n")).start()
    sys.stdout.write("ran\\n")  # in one piece: `print` of two threads may mix
    return 7

left = Left()
main.main = run
main.command()
"""


def test_threads_exit_functions_output_and_the_code_are_as_always_and_nothing_is_taken_apart() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (7, "")
    assert sorted(done.stdout.splitlines()) == ["done at exit", "ran", "waited for"]


def test_output_that_cannot_be_written_is_said_as_always() -> None:
    program = PROGRAM.replace("return 7", "return 0")
    with open("/dev/full", "w") as full:
        # without PYTHONUNBUFFERED: what is buffered is written at the end
        done = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, check=False, env={})
    assert done.returncode == 120
    assert b"No space left" in done.stderr


def test_an_unknown_command_has_its_code() -> None:
    done = subprocess.run([sys.executable, "-m", "ringfence", "nope"], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
