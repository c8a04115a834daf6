"""`ringfence selftest escape`, by its own door, in real boxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import aio_service

from ringfence.interfaces.cli.main import main
from ringfence.selftest.corpus import CORPUS

_NEEDED = {"docker": "docker_engine", "gvisor": "gvisor_image"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "isolation",
    [
        pytest.param("native", marks=pytest.mark.needs("native")),
        pytest.param("bwrap", marks=pytest.mark.needs("bwrap")),
        pytest.param("docker", marks=pytest.mark.needs("docker")),
        pytest.param("gvisor", marks=pytest.mark.needs("gvisor")),
    ],
)
def test_nothing_that_ships_gets_out_of_a_box(
    isolation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    if isolation in _NEEDED:
        request.getfixturevalue(_NEEDED[isolation])
    status = main(["selftest", "escape", "--isolation", isolation, "--json", "--home", str(tmp_path)])
    answer = json.loads(capsys.readouterr().out)
    through = {each["probe"]: each["how"] for each in answer["probes"] if each["verdict"] != "held"}
    # the one thing that this tier says it does not limit
    expected = {"inodes"} if isolation == "bwrap" else set()
    assert (set(through), status) == (expected, 1 if expected else 0), through
    assert len(answer["probes"]) == len(CORPUS)


@pytest.mark.needs("native")
def test_the_attempts_are_told_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["selftest", "escape", "--isolation", "native", "--only", "host_file", "--home", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split()[:3] == ["held", "G1", "host_file:"]
    assert said[-1] == "1 of 1 attempts were held"


def test_an_unknown_probe_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "escape", "--only", "nonsense"]) == 2
    assert "host_file" in capsys.readouterr().err


@pytest.mark.needs("bwrap")
def test_what_gets_through_a_box_that_is_none_is_told_with_another_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AIO service that isolates nothing: the command finds it out."""
    with aio_service.running(tmp_path / "service") as service:
        monkeypatch.setenv("RINGFENCE_AIO_INSTANCES", service.url)
        words = ["selftest", "escape", "--isolation", "aio", "--only", "host_file", "--home", str(tmp_path / "home")]
        status = main(words)
    said = capsys.readouterr()
    assert status == 1, said
    assert "GOT THROUGH" in said.out


@pytest.mark.needs("bwrap")
def test_what_the_law_sends_to_no_such_box_is_told_as_not_tried_and_the_rest_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["selftest", "escape", "--isolation", "aio", "--home", str(tmp_path / "home"), "--json"]
    only = [f"--only={name}" for name in ("host_file", "privileges", "forged_end")]
    with aio_service.running(tmp_path / "service") as service:
        monkeypatch.setenv("RINGFENCE_AIO_INSTANCES", service.url)
        status = main([*words, *only])
    said = json.loads(capsys.readouterr().out)
    verdicts = {each["probe"]: each["verdict"] for each in said["probes"]}
    assert status == 1
    assert verdicts["host_file"] == "got_through"
    assert verdicts["privileges"] == "untried"
    assert verdicts["forged_end"] != "untried", said
    assert "needs isolation of class container" in said["probes"][1]["how"]


def test_without_any_box_of_the_kind_there_is_one_line_with_the_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RINGFENCE_AIO_INSTANCES", raising=False)
    assert main(["selftest", "escape", "--isolation", "aio", "--home", str(tmp_path)]) == 7
    said = capsys.readouterr()
    assert said.out == ""
    assert "RINGFENCE_AIO_INSTANCES" in said.err
