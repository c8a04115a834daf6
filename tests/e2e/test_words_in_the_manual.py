"""Every option of the command that the manual, or a file to deploy, tells somebody to type is one that there is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from tests.command_line import ringfence

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*"))
    if path.is_file() and path.name != "CHANGELOG.md"
)
# from where a command begins to the end of the line or quotation, a comment, or whatever the shell does with it
TYPED = re.compile(r"(?:^[ #]*(?:\$ )?|[`(]|&& )ringfence ([a-z]+)((?: [^\s`#;&|>]+)*)", re.MULTILINE)


@cache
def usage(command: str) -> str:
    return ringfence(None, command, "--help").stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_an_option_that_somebody_is_told_to_type_is_there(page: Path) -> None:
    for command, words in TYPED.findall(page.read_text(errors="replace")):
        ours = words.split(" -- ")[0]
        for option in re.findall(r" (--[a-z][a-z-]*)", ours):
            known = re.search(rf"{option}(?![a-z-])", usage(command)) or option == "--help"
            assert known, f"ringfence {command}{words}"
