"""A box of another backend that is not finished leaves no descriptor behind, of its session neither."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ringfence.authority.profile import Isolation
from ringfence.isolation.bwrap import backend as bwrap
from ringfence.isolation.docker import backend as docker
from ringfence.isolation.gvisor import backend as gvisor
from ringfence.isolation.linux.meter import Meter
from ringfence.isolation.linux.workshop import HostEnds, Workshop
from ringfence.ports import WorkerSpec
from ringfence.wiring.box import make_backend
from ringfence.wiring.settings import Settings


def full(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize(
    ("isolation", "image", "step"),
    [
        pytest.param("docker", "docker_engine", (docker, "launch"), marks=pytest.mark.needs("docker")),
        pytest.param("gvisor", "gvisor_image", (Workshop, "reserve"), marks=pytest.mark.needs("gvisor")),
        pytest.param("gvisor", "gvisor_image", (gvisor, "command_of"), marks=pytest.mark.needs("gvisor")),
        pytest.param("gvisor", "gvisor_image", (Meter, "park"), marks=pytest.mark.needs("gvisor")),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_whatever_step_fails_over_a_session(
    isolation: str,
    image: str,
    step: tuple[Any, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    request.getfixturevalue(image)
    backend = make_backend(Settings(home=tmp_path, isolation=Isolation(isolation)))
    spec = WorkerSpec(session_id="s")
    try:
        backend.start(spec).discard()
        before = of_the_session(tmp_path)
        monkeypatch.setattr(*step, full)
        with pytest.raises(OSError, match="too many open files"):
            backend.start(spec)
        assert of_the_session(tmp_path) == before == []
        monkeypatch.undo()
        backend.start(spec).discard()
    finally:
        backend.close()


@pytest.mark.needs("bwrap")
def test_bubblewrap_that_dies_before_it_is_told_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        """An end that takes the first message and no other."""

        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return full if name == "send" else getattr(self._real, name)

    furnish = bwrap._furnish

    def furnish_and_die(ends: HostEnds, *what: Any) -> dict[str, Any]:
        answer = furnish(ends, *what)
        ends.status = Gone(ends.status)  # type: ignore[assignment]
        return answer

    backend = make_backend(Settings(home=tmp_path, isolation=Isolation.BWRAP))
    try:
        backend.start(WorkerSpec()).discard()
        before = os.listdir("/proc/self/fd")
        monkeypatch.setattr(bwrap, "_furnish", furnish_and_die)
        with pytest.raises(OSError, match="too many open files"):
            backend.start(WorkerSpec())
        assert os.listdir("/proc/self/fd") == before
    finally:
        backend.close()


def of_the_session(home: Path) -> list[str]:
    """Name the descriptors of this process in the directories of a home's session."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return [where for where in targets if where.startswith(f"{home}/workspace/projects/")]
