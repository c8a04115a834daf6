"""`ringfence start|ps|logs|send|kill`: processes of a service, from the command line of whoever owns its home."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command_line import COMMAND, ringfence, said, surroundings, told
from tests.http_service import serving

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a service."""
    where = tmp_path_factory.mktemp("home")
    with serving(where):
        yield where


@pytest.mark.parametrize(
    "words", [("ps",), ("logs", "pr_1"), ("send", "pr_1", "x"), ("kill", "pr_1"), ("start", "--", "true")]
)
def test_without_a_service_it_says_so_in_one_line_with_the_fix(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = ringfence(tmp_path, *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (7, "", 1)
    assert "no service of this home is running" in done.stderr
    assert "ringfence serve" in done.stderr


@pytest.mark.needs("native")
def test_a_process_is_started_listed_sent_to_read_and_killed(home: Path) -> None:
    process = told(home, "start", "--", "while read line; do echo got $line; done; sleep 1000")
    name = process["process_id"]
    assert name in said(home, "ps")
    assert told(home, "ps")["items"][-1]["state"] == "running"
    said(home, "send", name, "one")
    said(home, "send", name, "two", "--end")
    while "got two" not in (shown := said(home, "logs", name)):
        time.sleep(0.05)
    assert shown == "got one\ngot two\n"
    assert said(home, "kill", name) == f"{name} cancelled\n"
    assert told(home, "kill", name)["state"] == "cancelled"
    assert ringfence(home, "send", name, "late").returncode == 2


@pytest.mark.needs("native")
def test_following_ends_with_the_process_and_an_interrupt_is_a_signal(home: Path) -> None:
    process = told(home, "start", "--", "trap 'echo caught; exit 3' INT; echo up; while :; do sleep 0.1; done")
    following = subprocess.Popen(
        [*COMMAND, "logs", "-f", process["process_id"]], env=surroundings(home), stdout=subprocess.PIPE, text=True
    )
    assert following.stdout is not None
    with following.stdout:
        assert following.stdout.readline() == "up\n"
        said(home, "kill", process["process_id"], "--signal", "sigint")
        assert following.stdout.read() == "caught\n"
    assert following.wait() == 0


@pytest.mark.needs("native")
def test_what_a_process_prints_is_shown_on_our_terminal_and_not_obeyed(home: Path) -> None:
    evil = r"printf '\033]52;c;ZXZpbA==\007\033[2Jhidden\r\n\302\2331A'; sleep 0.1"
    process = told(home, "start", "--terminal", "--", evil)
    outer, inner = pty.openpty()
    try:
        showing = subprocess.Popen(
            [*COMMAND, "logs", "-f", process["process_id"]], env=surroundings(home), stdout=inner, stderr=inner
        )
        os.close(inner)
        shown = b""
        while True:
            try:
                data = os.read(outer, 4096)
            except OSError:
                break
            if not data:
                break
            shown += data
        assert showing.wait() == 0
    finally:
        os.close(outer)
    assert b"\x1b" not in shown
    assert b"\xc2\x9b" not in shown
    assert b"\\x1b]52;c;ZXZpbA==\\x07" in shown
    raw = json.loads(said(home, "logs", "--json", process["process_id"]))
    assert "\x1b]52" in raw["stdout"]["text"]


def test_wrong_words_are_usage(home: Path) -> None:
    for words in (
        ("start",),
        (
            "start",
            "--",
        ),
        ("logs",),
        ("logs", "../x"),
        ("kill", "a/b"),
        ("ps", "extra"),
    ):
        assert ringfence(home, *words).returncode == 2
    assert ringfence(home, "logs", "pr_unknown").returncode == 2
