"""What engines complain about, in their own words, and what is made of it."""

from __future__ import annotations

import pytest

from ringfence.isolation.docker.failures import explain, lacks_interpreter, one_line
from ringfence.isolation.docker.settings import EngineSettings

HINT = "\n\nRun 'docker run --help' for more information\n"
SETTINGS = EngineSettings(runtime="runsc")
SAID = [
    ("docker: Error response from daemon: No such image: ringfence/sandbox:latest" + HINT, "image_missing"),
    ("Error: ringfence/sandbox:latest: image not known", "image_missing"),
    ('Error: short-name "sandbox" did not resolve to an alias and no registries are defined', "image_missing"),
    (
        "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is the docker daemon running?",
        "engine_unreachable",
    ),
    ("error during connect: Post http://host/v1.41/containers/create: EOF", "engine_unreachable"),
    (
        "permission denied while trying to connect to the Docker daemon socket at unix:///run/docker.sock: "
        "dial unix /run/docker.sock: connect: permission denied",
        "engine_unreachable",
    ),
    ("docker: Error response from daemon: Unknown runtime specified runsc" + HINT, "isolation_unavailable"),
    ('Error: default OCI runtime "runsc" not found: invalid argument', "isolation_unavailable"),
    (
        "docker: Error response from daemon: OCI runtime start failed: setting up network: creating "
        'interfaces from net namespace "/proc/1/ns/net": cannot run with network enabled in root network namespace',
        "isolation_unavailable",
    ),
    ("docker: Error response from daemon: mkdir /var/lib/docker/x: no space left on device." + HINT, "engine_full"),
    ("unknown flag: --cgroupns\n\nUsage:  docker run [OPTIONS] IMAGE" + HINT, "engine_too_old"),
    ('"--cgroupns" requires API version 1.41, but the Docker daemon API version is 1.40', "engine_too_old"),
    (
        'docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /x'
        + HINT,
        "engine_elsewhere",
    ),
]


@pytest.mark.parametrize(("said", "reason"), SAID)
def test_a_complaint_becomes_one_line_with_a_reason_and_a_fix(said: str, reason: str) -> None:
    error = explain(said, SETTINGS)
    assert (error.reason, error.code) == (reason, "PROVIDER.UNAVAILABLE")
    assert error.fix
    assert "\n" not in f"{error} {error.fix}"


def test_a_complaint_nobody_knows_is_passed_on_without_its_control_characters() -> None:
    error = explain("WARNING: old\n\x1b[31mthe moon is full\x00" + HINT, SETTINGS)
    assert str(error) == "the container engine refuses:  [31mthe moon is full "


def test_the_missing_image_and_the_missing_runtime_are_named() -> None:
    assert "ringfence/sandbox:latest" in str(explain(SAID[0][0], SETTINGS))
    assert "runsc" in str(explain(SAID[6][0], SETTINGS))


@pytest.mark.parametrize(
    "said",
    [
        'unable to start container process: exec: "python3": executable file not found in $PATH: unknown',
        'Error: runc: exec failed: unable to start container process: exec: "python3": executable file not found',
        "crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime",
    ],
)
def test_an_image_without_python_is_told_apart(said: str) -> None:
    assert lacks_interpreter(said)


def test_what_a_program_inside_says_is_no_missing_interpreter() -> None:
    assert not lacks_interpreter("python3: can't open file '/workspace/work/x.py': [Errno 2]")


def test_only_the_telling_line_is_shown_and_never_more_than_fits() -> None:
    assert one_line("a\nb" + HINT) == "b"
    assert len(one_line("x" * 10_000)) == 300
