"""What an image brings along: directories on the engine's disk, places of its own that anybody may write to."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.command_line import told
from tests.container_engine import Engine

pytestmark = [pytest.mark.needs("docker"), pytest.mark.guarantee(29), pytest.mark.timeout(120)]

# More than the limit of any directory that a guest is given, in files that are each within theirs.
FILL = """
import sys
for number in range(3):
    with open(f'{sys.argv[1]}/{number}', 'wb') as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
print('on the disk of the engine')
"""


@contextmanager
def made_from(engine: Engine, script: str, *changes: str) -> Iterator[str]:
    """Have an image that is made of the sandbox's by a script of root's in it, and by changes to its configuration."""
    name = f"rf-made-{secrets.token_hex(6)}"
    base = os.environ["RINGFENCE_DOCKER_IMAGE"]
    run = engine.docker(
        "run", f"--name={name}", "--network=none", "--user=0", "--entrypoint=/bin/sh", base, "-c", script
    )
    assert run.returncode == 0, run.stderr
    try:
        done = engine.docker("commit", *(f"--change={line}" for line in changes), name, name)
        assert done.returncode == 0, done.stderr
    finally:
        engine.docker("rm", "--force", name)
    try:
        yield name
    finally:
        engine.docker("rmi", name)


def ran(engine: Engine, image: str, home: Path, *words: str, code: int, **settings: str) -> dict[str, Any]:
    """Run a program in a container of the image, and return what the command told."""
    return told(
        home,
        *("run", "--isolation", "docker", *words),
        code=code,
        RINGFENCE_DOCKER_URL=engine.url,
        RINGFENCE_DOCKER_IMAGE=image,
        **{f"RINGFENCE_DOCKER_{name.upper()}": value for name, value in settings.items()},
    )


@pytest.fixture(scope="module")
def with_a_volume(docker_engine: Engine) -> Iterator[str]:
    """Give the name of an image that wants a directory on its engine's disk, and whose users may write to it."""
    with made_from(docker_engine, "mkdir -m 1777 /data", "VOLUME /data") as name:
        yield name


@pytest.fixture(scope="module")
def with_room_of_its_own(docker_engine: Engine) -> Iterator[str]:
    """Give the name of an image like most: `/var/tmp` is a directory, and anybody's."""
    with made_from(docker_engine, "rm /var/tmp && mkdir -m 1777 /var/tmp /var/any") as name:
        yield name


@pytest.mark.parametrize("runtime", ["", pytest.param("runsc", marks=pytest.mark.needs("gvisor"))])
def test_an_image_that_wants_a_directory_on_the_engines_disk_is_refused_and_runs_nothing(
    docker_engine: Engine, with_a_volume: str, tmp_path: Path, runtime: str
) -> None:
    words = ("--security", "permissive", "-c", FILL, "--", "/data")
    answer = ran(docker_engine, with_a_volume, tmp_path, *words, code=7, runtime=runtime)
    assert answer["reason"] == "isolation_unavailable"
    assert "/data" in answer["error"]
    assert "VOLUME" in answer["fix"]
    assert docker_engine.docker("volume", "ls", "--quiet").stdout == ""


@pytest.mark.parametrize("where", ["/var/tmp", "/var/any"])
def test_where_the_image_may_be_written_no_directory_of_its_own_takes_more_than_nothing(
    docker_engine: Engine, with_room_of_its_own: str, tmp_path: Path, where: str
) -> None:
    words = ("-c", FILL, "--", where)
    answer = ran(docker_engine, with_room_of_its_own, tmp_path, *words, code=1, readonly_root="false")
    assert "PermissionError" in answer["stderr"]


# In the place of python3: everything as it should be, but that the worker is sealed in words alone.
LIAR = r"""#!/bin/sh
exec /usr/bin/python3.real -c '
import sys
boot = sys.argv[-1].replace("module.main()", "module.sealing.give_up_everything = lie; module.main()")
exec(boot, {"lie": lambda *_: {"landlock": 7, "filters": 2, "notes": []}})
' "$@"
"""


def test_an_image_whose_python_only_says_that_it_filters_is_refused(docker_engine: Engine, tmp_path: Path) -> None:
    script = (
        "mv $(readlink -f /usr/bin/python3) /usr/bin/python3.real && rm -f /usr/bin/python3"
        f" && printf %s {shlex.quote(LIAR)} >/usr/bin/python3 && chmod 755 /usr/bin/python3"
    )
    with made_from(docker_engine, script) as image:
        answer = ran(docker_engine, image, tmp_path, "-c", "print(1)", code=7)
    assert answer["reason"] == "isolation_unavailable"
    assert "filters that it says it has" in answer["error"]


@pytest.mark.needs("gvisor")
def test_an_image_that_may_be_written_is_refused_where_nothing_would_bound_that(
    docker_engine: Engine, with_room_of_its_own: str, tmp_path: Path
) -> None:
    words = ("--security", "permissive", "-c", FILL, "--", "/var/any")
    answer = ran(docker_engine, with_room_of_its_own, tmp_path, *words, code=7, readonly_root="false", runtime="runsc")
    assert answer["reason"] == "isolation_unavailable"
    assert "readonly_root" in answer["fix"]
