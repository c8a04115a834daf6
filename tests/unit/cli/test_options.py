from __future__ import annotations

import pytest

from ringfence.interfaces.cli.options import RunOptions, parse_run
from ringfence.interfaces.cli.usage import UsageError


def test_every_option_lands_in_its_field() -> None:
    words = (
        "job.js --language typescript --isolation native --security permissive --with numpy --with pandas==2 "
        "--preload numpy --timeout 1.5 --memory 64 --input a --input b --env K=V --env E=a=b --artifacts out "
        "--project p1 --no-stdin --passthrough --json -- --fast -c x"
    )
    assert parse_run("run", words.split()) == RunOptions(
        language="typescript",
        file="job.js",
        args=("--fast", "-c", "x"),
        isolation="native",
        security="permissive",
        packages=("numpy", "pandas==2"),
        preload=("numpy",),
        timeout=1.5,
        memory_mb=64,
        inputs=("a", "b"),
        env={"K": "V", "E": "a=b"},
        artifacts="out",
        project="p1",
        stdin=False,
        passthrough=True,
        json=True,
    )


def test_the_defaults_are_python_strict_and_auto() -> None:
    assert parse_run("run", ["-c", "print(1)"]) == RunOptions(language="python", code="print(1)")


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("a.py", "python"),
        ("d.ir/a.js", "javascript"),
        ("a.mjs", "javascript"),
        ("a.ts", "typescript"),
        ("a.sh", "bash"),
        ("-", "python"),
    ],
)
def test_the_suffix_of_a_file_tells_its_language(file: str, language: str) -> None:
    assert parse_run("run", [file]).language == language


def test_one_word_after_the_dashes_is_a_script() -> None:
    assert parse_run("shell", ["--", "echo hi | wc"]).code == "echo hi | wc"


def test_hosts_to_reach_are_kept_in_order() -> None:
    words = ["--allow-domain", "example.org", "--allow-domain=*.example.com", "-c", "1"]
    assert parse_run("run", words).allow_domains == ("example.org", "*.example.com")


def test_several_words_are_an_argv_and_arrive_exactly() -> None:
    assert parse_run("shell", ["--", "echo", "a b", "$HOME"]).code == "echo 'a b' '$HOME'"


@pytest.mark.parametrize("kind", ["auto", "native", "bwrap", "docker", "gvisor", "aio"])
def test_every_kind_of_box_can_be_named(kind: str) -> None:
    assert parse_run("run", ["--isolation", kind, "-c", "1"]).isolation == kind


def test_what_isolates_nothing_is_no_isolation() -> None:
    with pytest.raises(UsageError, match="isolates nothing"):
        parse_run("run", ["--isolation", "process", "-c", "1"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a.py", "-c", "1"],
        ["a.py", "b.py"],
        ["noext"],
        ["d.py/noext"],
        ["-c", "1", "--timeout", "0"],
        ["-c", "1", "--timeout", "-1"],
        ["-c", "1", "--timeout", "nan"],
        ["-c", "1", "--timeout", "inf"],
        ["-c", "1", "--timeout", "soon"],
        ["-c", "1", "--memory", "0"],
        ["-c", "1", "--memory", "1.5"],
        ["-c", "1", "--env", "NAME"],
        ["-c", "1", "--env", "=v"],
        ["-c", "1", "--lang", "python"],
        ["-c", "1", "--language", "cobol"],
        ["-c", "1", "--security", "none"],
    ],
)
def test_a_wrong_command_line_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_run("run", words)


@pytest.mark.parametrize(
    ("option", "value", "meant"),
    [("--timeout", "soon", "is not a number of seconds above 0"), ("--memory", "1.5", "is not a whole number above 0")],
)
def test_what_is_no_number_is_told_what_is_meant(option: str, value: str, meant: str) -> None:
    with pytest.raises(UsageError, match=meant):
        parse_run("run", ["-c", "1", option, value])


@pytest.mark.parametrize("words", [[], ["--"], ["ls"], ["-c", "ls"], ["--language", "python", "--", "ls"]])
def test_a_shell_without_a_command_after_dashes_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_run("shell", words)
