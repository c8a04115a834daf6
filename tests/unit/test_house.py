"""The rules of the house that no off-the-shelf tool checks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import ringfence

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# Split, so that this file does not name them either.
REGISTRIES = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("crates", "io"),
    )
)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}


def tracked_files() -> list[Path]:
    """Every file of the tree that is ours: what git tracks, or in an exported copy all but what the tools make."""
    try:
        listed = subprocess.run(
            ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        made = {".venv", "__pycache__", "home", "tmp"}
        return [path for path in ROOT.rglob("*") if path.is_file() and not made & set(path.relative_to(ROOT).parts)]
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def pins(path: Path) -> dict[str, str]:
    """Read a compiled requirements file into name → the rest of its entry."""
    entries = re.split(r"\n(?=\S)", path.read_text().replace("\\\n", " "))
    kept = [entry.partition("#")[0].strip() for entry in entries]
    return {re.split(r"[=<>\[; ]", entry, maxsplit=1)[0]: entry for entry in kept if entry}


def test_no_file_names_a_package_registry() -> None:
    named = [
        (path.relative_to(ROOT).as_posix(), host)
        for path in tracked_files()
        for host in REGISTRIES
        if re.search(rb"\b" + re.escape(host).encode() + rb"\b", path.read_bytes())
    ]
    engine = ".".join(("docker", "io"))  # what Debian calls its package of the engine, which these two install
    assert named == [("deploy/Dockerfile", engine), ("tools/setup", engine)]


def test_dataclasses_are_made_one_way() -> None:
    """By `ringfence.dataclass`, which is cheap to import; what only reads one is the standard library's."""
    making = r"\b(?:dataclass|field|fields|replace)\b"
    wrong = re.compile(rf"^\s*(?:import dataclasses|from dataclasses import .*{making})", re.MULTILINE)
    made = [path for path in (ROOT / "src").rglob("*.py") if wrong.search(path.read_text())]
    assert made == [ROOT / "src" / "ringfence" / "dataclass.py"]


def test_no_module_is_named_after_nothing() -> None:
    assert [path for path in (ROOT / "src").rglob("*.py") if path.stem in BANNED_NAMES] == []


def test_no_source_file_has_outgrown_one_idea() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines()) for path in source_files()}
    assert {name: length for name, length in lengths.items() if length > 450} == {}


def source_files() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda path: path.name)
def test_every_requirement_is_pinned_to_one_version_and_its_hashes(path: Path) -> None:
    entries = pins(path)
    assert [name for name, entry in entries.items() if "==" not in entry or "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").glob("*.in")), ids=lambda path: path.name)
def test_what_is_asked_for_is_what_is_pinned(path: Path) -> None:
    wanted = {
        re.split(r"[=<>\[; ]", line, maxsplit=1)[0] for line in path.read_text().splitlines() if line[:1].isalpha()
    }
    assert wanted - pins(path.with_suffix(".txt")).keys() == set()


def test_the_package_needs_nothing_but_python() -> None:
    assert PROJECT["project"]["dependencies"] == []


def test_importing_ringfence_imports_no_part_of_it() -> None:
    code = "import sys, ringfence; print(*sorted(name for name in sys.modules if name.startswith('ringfence.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == []


def test_every_public_name_is_written_in_all_three_places() -> None:
    assert set(ringfence.__all__) == set(ringfence._HOME_OF)
    assert ringfence.__all__ == sorted(ringfence.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ringfence.nonsense


@pytest.mark.timeout(120)
def test_the_wheel_holds_every_file_of_the_package_its_version_and_its_command(tmp_path: Path) -> None:
    if not (ROOT / "README.md").exists():
        pytest.skip("the wheel's description, README.md, is not there yet")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.startswith("ringfence/")}
        info = f"ringfence-{ringfence.__version__}.dist-info"
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        commands = archive.read(f"{info}/entry_points.txt").decode()
    ours = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "ringfence").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == ours
    assert metadata["Version"] == ringfence.__version__
    assert [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need] == []
    assert "ringfence = ringfence.interfaces.cli.main:command" in commands
