"""An interpreter that is brought along: what has to be shown, and how it is started where nothing else is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ringfence.isolation.docker.carried import SHOWN_AT, carried_python, loader_of


def test_the_loader_is_read_off_the_program() -> None:
    found = loader_of(Path(os.path.realpath("/bin/sh")).read_bytes())
    assert found is not None
    assert os.path.exists(found)


@pytest.mark.parametrize("text", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(60)])
def test_what_is_no_program_of_64_bits_has_none(text: bytes) -> None:
    assert loader_of(text) is None


@pytest.mark.needs("system_python")
def test_every_word_is_a_path_of_the_tree_that_is_shown() -> None:
    brought = carried_python()
    assert brought.shown == ("/usr", SHOWN_AT)
    loader, option, libraries, interpreter = brought.words
    assert option == "--library-path"
    assert all(path.startswith(SHOWN_AT + "/") for path in (loader, interpreter, *libraries.split(":")))
    outside = [word.replace(SHOWN_AT, "/usr") for word in brought.words]
    done = subprocess.run([*outside, "-I", "-S", "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"
