"""Modules are read from their bytecode as Python itself would, and left to Python where anything is otherwise."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from ringfence.interfaces.cli.bytecode import Direct

NAME = "ringfence.somewhere"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A module that is compiled, where a package of ours could be."""
    source = tmp_path / "somewhere.py"
    source.write_text("def found():\n    return 1\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    return source


def is_found(source: Path) -> bool:
    return Direct.find_spec(NAME, [str(source.parent)]) is not None


def cached(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(source))


def test_a_module_is_what_python_would_have_made_of_it(source: Path) -> None:
    spec = Direct.find_spec(NAME, [str(source.parent)])
    usual = importlib.util.spec_from_file_location(NAME, source)
    assert spec is not None
    assert usual is not None
    assert spec.loader is not None
    assert (spec.name, spec.origin, spec.cached, spec.has_location) == (NAME, str(source), str(cached(source)), True)
    module, usually = map(importlib.util.module_from_spec, (spec, usual))
    spec.loader.exec_module(module)
    assert (module.found(), module.found.__code__.co_filename) == (1, str(source))
    assert vars(module).keys() - {"found", "__builtins__"} == vars(usually).keys() - {"__builtins__"}
    assert module.__loader__.get_source(NAME) == source.read_text()  # type: ignore[union-attr]
    assert module.__loader__.get_code(NAME).co_filename == str(source)  # type: ignore[union-attr]


def test_a_module_may_be_long(source: Path) -> None:
    source.write_text("".join(f"def found_{number}():\n    return 'this is {number}'\n" for number in range(2000)))
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    assert cached(source).stat().st_size > 2 * 65536
    spec = Direct.find_spec(NAME, [str(source.parent)])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.found_1999() == "this is 1999"


def test_bytecode_of_another_source_is_not_taken(source: Path) -> None:
    status = source.stat()
    source.write_text("def found():\n    return 22\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not is_found(source), "of another size"
    source.write_text("def found():\n    return 1\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert is_found(source)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    assert not is_found(source), "of another second"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"",
        lambda whole: whole[:12],
        lambda whole: whole[:-8],
        lambda whole: b"\0\0" + whole[2:],
        lambda whole: whole[:4] + b"\1" + whole[5:],
        lambda whole: whole[:16] + b"N" + whole[17:],
    ],
    ids=["empty", "half a header", "cut off", "of another Python", "by hash", "no code"],
)
def test_what_is_not_as_expected_is_left_to_python(source: Path, spoil) -> None:  # type: ignore[no-untyped-def]
    assert is_found(source)
    cached(source).write_bytes(spoil(cached(source).read_bytes()))
    assert not is_found(source)


def test_what_was_compiled_under_another_name_is_left_to_python(source: Path) -> None:
    py_compile.compile(str(source), dfile="elsewhere.py", doraise=True)
    assert not is_found(source)


def test_nothing_is_found_where_nothing_is(tmp_path: Path, source: Path) -> None:
    cached(source).unlink()
    assert not is_found(source)
    source.unlink()
    assert not is_found(source)
    assert Direct.find_spec("elsewhere.somewhere", [str(tmp_path)]) is None
    assert Direct.find_spec("ringfence") is None


def test_whoever_stands_before_the_standard_library_is_asked_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    standard = str(Path(os.__file__).parent)
    monkeypatch.setattr(sys, "path", ["/usr/lib/python.zip", standard])
    assert Direct.find_spec("argparse") is not None
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/usr/lib/python.zip", standard])
    assert Direct.find_spec("argparse") is None


@pytest.mark.parametrize(
    ("flags", "is_there"), [([], True), (["-O"], False), (["-X", "pycache_prefix=/nowhere"], False)]
)
def test_the_command_reads_its_modules_so_unless_python_is_told_otherwise(flags: list[str], is_there: bool) -> None:
    program = (
        "import sys; from ringfence.interfaces.cli import main;"
        "main.main = lambda: print([each.__name__ for each in sys.meta_path if isinstance(each, type)]) or 0;"
        "main.command()"
    )
    done = subprocess.run(
        [sys.executable, *flags, "-I", "-c", program, "run"], capture_output=True, text=True, check=True
    )
    assert ("'Direct', 'PathFinder'" in done.stdout, "Direct" in done.stdout) == (is_there, is_there)
