"""Where a program starts: anywhere in its workspace, in every language, on every backend, and on record."""

from __future__ import annotations

import pytest

import ringfence
from ringfence.errors import InvalidRequest, PathTraversalError

WHERE = {
    "python": "import os; print(os.getcwd())",
    "bash": "pwd",
    "javascript": "console.log(process.cwd())",
    "typescript": "const where: string = process.cwd(); console.log(where)",
}
NODE = [pytest.param(name, marks=pytest.mark.needs("node")) for name in ("javascript", "typescript")]
BACKENDS = [
    pytest.param("native", marks=pytest.mark.needs("native")),
    pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
]


@pytest.mark.parametrize("isolation", BACKENDS)
@pytest.mark.parametrize("language", ["python", "bash", *NODE])
@pytest.mark.parametrize(
    ("cwd", "where"),
    [
        ("sub/deep", "/workspace/work/sub/deep"),
        ("/workspace/inputs", "/workspace/inputs"),
        ("/workspace", "/workspace"),
        (".", "/workspace/work"),
        (None, "/workspace/work"),
    ],
)
def test_a_program_starts_where_it_is_told(language: str, cwd: str | None, where: str, isolation: str) -> None:
    said = ringfence.run(
        WHERE[language],
        language=language,
        cwd=cwd,
        files={"sub/deep/x": b""},
        inputs={"y": b""},
        isolation=isolation,
    )
    assert (said.stdout, said.stderr) == (f"{where}\n", "")


@pytest.mark.parametrize("isolation", BACKENDS)
@pytest.mark.parametrize("language", ["python", "bash", *NODE])
def test_a_directory_that_is_not_there_fails_the_program_and_runs_none_of_it(language: str, isolation: str) -> None:
    said = ringfence.run(WHERE[language], language=language, cwd="nowhere", isolation=isolation)
    assert (said.status, said.exit_code, said.stdout) == ("failed", 126, "")
    assert "/workspace/work/nowhere" in said.stderr


@pytest.mark.parametrize("cwd", ["..", "../..", "/", "/etc", "/workspace/../etc", "a/../../b", "/workspaces", "a\0b"])
def test_no_directory_outside_of_the_workspace_can_be_named(cwd: str) -> None:
    with pytest.raises((InvalidRequest, PathTraversalError)):
        ringfence.run("print('RAN')", cwd=cwd)
