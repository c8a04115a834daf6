"""Which directories the box shows and hides for an interpreter."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.errors import IsolationUnavailable
from ringfence.runtimes.python import (
    SystemTree,
    bash_path,
    interpreter_trees,
    package_directories,
    python_runtime,
    refuse_unreadable,
    system_trees,
)


def make(*directories: Path) -> None:
    for directory in directories:
        directory.mkdir(parents=True)
        directory.chmod(0o755)


def test_the_interpreter_below_a_virtual_environment_is_the_guests(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    show = (
        "from ringfence.runtimes.python import python_runtime as p; r = p(); print(r.executable, *r.trees, sep='\\n')"
    )
    source = str(Path(__file__).parents[3] / "src")
    done = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", show],
        env={"PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path) not in done.stdout
    assert done.stdout.splitlines()[0] == str(python_runtime().executable)


def test_the_standard_library_is_shown_and_installed_packages_are_not() -> None:
    runtime = python_runtime()
    shown = (*runtime.trees, Path("/usr"))
    assert runtime.stdlib
    assert all(any(path.is_relative_to(tree) for tree in shown) for path in (*runtime.stdlib, runtime.executable))
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    packages = Path(sysconfig.get_path("purelib", "posix_prefix", vars=base)).resolve()
    assert not packages.is_dir() or packages in runtime.hidden
    assert not set(runtime.stdlib) & set(runtime.hidden)


def test_an_interpreter_in_the_system_trees_needs_no_mount() -> None:
    stdlib = (Path("/usr/lib/python3.12"),)
    assert interpreter_trees(Path("/usr/bin/python3.12"), Path("/usr"), stdlib) == ()
    assert interpreter_trees(Path("/usr/local/bin/python3.12"), Path("/usr/local"), stdlib) == ()


def test_only_the_executables_and_libraries_of_a_prefix_are_mounted(tmp_path: Path) -> None:
    prefix = tmp_path / ".local"
    stdlib = prefix / "lib/python3.12"
    make(prefix / "bin", stdlib, prefix / "share/keyrings")
    assert interpreter_trees(prefix / "bin/python3.12", prefix, (stdlib,)) == (prefix / "bin", prefix / "lib")


def test_a_standard_library_outside_the_prefix_is_mounted_too(tmp_path: Path) -> None:
    make(tmp_path / "a/bin", tmp_path / "b/lib/python3.12")
    trees = interpreter_trees(tmp_path / "a/bin/python", tmp_path / "a", (tmp_path / "b/lib/python3.12",))
    assert trees == (tmp_path / "a/bin", tmp_path / "b/lib/python3.12")


def test_package_directories_of_debian_docker_and_the_prefix_are_hidden(tmp_path: Path) -> None:
    system, prefix = tmp_path / "usr", tmp_path / "prefix"
    packages = [
        prefix / "lib/python3.12/site-packages",
        system / "lib/python3/dist-packages",
        system / "lib64/python3.12/site-packages",
        system / "local/lib/python3.11/dist-packages",
        system / "local/lib/python3.12/site-packages",
    ]
    make(*packages, system / "lib/python3.12/json")
    assert package_directories(prefix, system=system) == tuple(sorted(packages))


def test_an_interpreter_closed_to_others_is_refused_with_the_fix(tmp_path: Path) -> None:
    stdlib = tmp_path / "lib/python3.12"
    make(tmp_path / "bin", tmp_path / "lib", stdlib)
    executable = tmp_path / "bin/python"
    executable.touch()
    executable.chmod(0o755)
    runtime = replace(
        python_runtime(), executable=executable, stdlib=(stdlib,), trees=(tmp_path / "bin", tmp_path / "lib")
    )
    tmp_path.chmod(0o700)  # above the trees: the box makes its own
    refuse_unreadable(runtime)
    stdlib.chmod(0o750)
    with pytest.raises(IsolationUnavailable) as refused:
        refuse_unreadable(runtime)
    assert (refused.value.reason, refused.value.fix) == ("interpreter_unreadable", f"chmod -R o+rX {stdlib}")


def test_a_merged_usr_is_made_again_with_its_links(tmp_path: Path) -> None:
    make(tmp_path / "usr/bin", tmp_path / "usr/lib", tmp_path / "sbin")
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "lib").symlink_to("/usr/lib")
    assert system_trees(tmp_path) == (
        SystemTree(Path("/usr")),
        SystemTree(Path("/bin"), link="usr/bin"),
        SystemTree(Path("/sbin")),
        SystemTree(Path("/lib"), link="/usr/lib"),
    )


@pytest.mark.parametrize("target", ["/home/somebody", "home", "usr/../home", "/usr/../etc", "home/usr/lib", "usr"])
def test_a_system_directory_that_links_elsewhere_is_not_shown(tmp_path: Path, target: str) -> None:
    make(tmp_path / "usr", tmp_path / "home")
    (tmp_path / "lib32").symlink_to(target)
    assert system_trees(tmp_path) == (SystemTree(Path("/usr")),)


def test_bash_runs() -> None:
    assert subprocess.run([bash_path(), "-c", "echo $((40 + 2))"], capture_output=True, check=True).stdout == b"42\n"
